"""Names of the files that an inspection of sub-goals writes into ``RUN/subgoals``."""

SUBGOALS = "subgoals"
JSON_FILE = "subgoals.json"
ARRAYS_FILE = "subgoals.npz"
ERRORS_FILE = "subgoal_errors.svg"
# A maze from above, a picture each: side by side, their text would be too small for the
# screen of a telephone.
MAZE_RECORDED_FILE = "maze_recorded.svg"
MAZE_VALUES_FILE = "maze_values.svg"
MAZE_POLICY_FILE = "maze_policy.svg"
SCENE_FILE = "subgoals.svg"
VIDEO_FILE = "rollout.webm"
# Earlier versions wrote animations, which reports still show.
OLD_VIDEO_FILE = "rollout.gif"
# What a new inspection deletes first: it may draw less than the one before.
DRAWN_FILES = (
    *(ERRORS_FILE, MAZE_RECORDED_FILE, MAZE_VALUES_FILE, MAZE_POLICY_FILE),
    *(SCENE_FILE, VIDEO_FILE, OLD_VIDEO_FILE),
    # Pictures of earlier versions.
    *("subgoal_errors.png", "maze.png", "subgoals.png"),
)
