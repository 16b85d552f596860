"""The report as Chromium shows it: wide and narrow, by day and by night.

Nothing overflows, nothing is reported to the console or asked of the network, links
lead somewhere, text can be read, and axe-core finds no fault. Needs Chromium and the
extra `browser`; `make browser` installs them.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browsers import IN_A_BROWSER, SCREENS, check_page, open_browser
from tests.evaluated import RUN, evaluation, write_evaluated_run
from tests.videos import make_gif
from trainer.report.report import write_report
from trainer.runs.evaluations import append_evaluation
from trainer.runs.folder import RunFolder, open_folder
from trainer.runs.run import write_run
from trainer.subgoals.video import encode_video

pytestmark = IN_A_BROWSER


def write_runs(parent: Path) -> list[RunFolder]:
    """Three methods in four tasks, three seeds each, and a run of a hostile name."""
    folders = []
    for task in range(1, 5):
        for shift, temperature in enumerate((0.0, 0.1, 0.5)):
            agent = dataclasses.replace(RUN.config.agent, temperature=temperature)
            trainer = dataclasses.replace(RUN.config.trainer, seeds=3)
            config = dataclasses.replace(RUN.config, agent=agent, trainer=trainer)
            run = dataclasses.replace(
                RUN, config=config, task=dataclasses.replace(RUN.task, task=task)
            )
            folder = RunFolder.open(parent / f"cube-single-play-{task}-{shift}")
            write_run(folder, run)
            for step in (1000, 2000):
                for seed in range(3):
                    solved = min(10, shift * 2 + seed + step // 1000)
                    append_evaluation(folder, evaluation(step, seed, solved, task=task))
            folders.append(folder)
    hostile = parent / '"><img src=x onerror=alert(1)> & <b>'
    write_evaluated_run(parent).rename(hostile)
    subgoals = hostile / "subgoals"
    subgoals.mkdir()
    (subgoals / "subgoals.json").write_text('{"step": 3000, "seed": 1}')
    (subgoals / "rollout.gif").write_bytes(make_gif())
    frames = [np.full((360, 480, 3), 20 * index, np.uint8) for index in range(9)]
    (subgoals / "rollout.webm").write_bytes(encode_video(frames))
    return [*folders, RunFolder.open(hostile)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    written = write_report(write_runs(folder / "runs"), open_folder(folder / "out"))
    return Path(written[0])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_report_on_a_screen(
    browser: Any, report: Path, width: int, scheme: str
) -> None:
    check_page(browser, report, width, scheme, pictures=16)


def test_the_table_fits_and_its_first_column_stays(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(report.as_uri())
    scroll = page.locator(".scroll").first
    assert scroll.evaluate("e => e.scrollWidth <= e.clientWidth")
    page.set_viewport_size({"width": 400, "height": 900})
    assert scroll.evaluate("e => e.scrollWidth > e.clientWidth")
    first = page.locator("tbody th").first
    before = first.bounding_box()["x"]
    scroll.evaluate("e => { e.scrollLeft = 300 }")
    assert scroll.evaluate("e => e.scrollLeft") == 300
    assert first.bounding_box()["x"] == before
    page.close()


def test_pictures_are_drawn_in_other_colours_by_night(
    browser: Any, report: Path
) -> None:
    shots = []
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(report.as_uri())
        shots.append(page.locator("img").first.screenshot())
        page.close()
    assert shots[0] != shots[1]


def test_animations_stand_still_for_who_asks_for_it(browser: Any, report: Path) -> None:
    kinds = {}
    for motion in ("reduce", "no-preference"):
        page = browser.new_page(reduced_motion=motion)
        page.goto(report.as_uri())
        kinds[motion] = page.locator("picture img").evaluate("e => e.currentSrc")[:15]
        page.close()
    assert kinds == {"reduce": "data:image/png;", "no-preference": "data:image/gif;"}


def test_a_video_waits_for_who_plays_it(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(report.as_uri())
    video = page.locator("video")
    page.wait_for_function("document.querySelector('video').readyState >= 2")
    assert video.evaluate("v => [v.paused, v.controls, v.autoplay]") == [
        *(True, True, False)
    ]
    assert video.evaluate("v => [v.videoWidth, v.duration]") == [480, 0.9]
    assert video.evaluate("v => v.play().then(() => v.error)") is None
    page.wait_for_function("document.querySelector('video').currentTime > 0")
    page.close()


def test_the_contents_lead_to_their_sections(browser: Any, report: Path) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 600})
    page.goto(report.as_uri())
    links = page.locator("nav a")
    assert links.count() > 10
    links.nth(links.count() - 2).click()
    top = page.locator("section.run h2").last.bounding_box()["y"]
    assert -1 < top < 600
    page.close()
