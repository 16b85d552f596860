import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.nn import losses, optimizers


def test_expectile_loss_by_hand() -> None:
    # u = 2: 0.9 * 4 = 3.6; u = -2: 0.1 * 4 = 0.4; u = 0: 0.
    got = losses.expectile_loss(jnp.array([2.0, -2.0, 0.0]), expectile=0.9)
    np.testing.assert_allclose(got, [3.6, 0.4, 0.0], rtol=1e-6)


def test_expectile_half_is_half_the_squared_error() -> None:
    u = jnp.linspace(-3, 3, 11)
    got = losses.expectile_loss(u, expectile=0.5)
    np.testing.assert_allclose(got, 0.5 * np.square(u), rtol=1e-6)


def test_expectile_of_two_values_by_minimising() -> None:
    # Stationary point of tau (1 - v)^2 + (1 - tau) v^2 over v in [0, 1] is v = tau.
    grid = jnp.linspace(0, 1, 1001)
    total = losses.expectile_loss(1 - grid, expectile=0.9) + losses.expectile_loss(
        0 - grid, expectile=0.9
    )
    assert grid[total.argmin()] == pytest.approx(0.9)


def test_aggregate() -> None:
    values = jnp.array([[1.0, 5.0], [3.0, 2.0]])
    np.testing.assert_array_equal(losses.aggregate(values, "min"), [1, 2])
    np.testing.assert_array_equal(losses.aggregate(values, "mean"), [2, 3.5])
    with pytest.raises(ValueError, match="'min' or 'mean'"):
        losses.aggregate(values, "max")  # type: ignore[arg-type]


def test_the_gradient_of_a_minimum_is_that_of_one_entry() -> None:
    values = jnp.array([[1.0, 5.0, 4.0, jnp.nan], [3.0, 2.0, 4.0, 1.0]])
    smallest, gradient = jax.value_and_grad(
        lambda x: losses.aggregate(x, "min")[:3].sum()
    )(values)
    assert smallest == 1 + 2 + 4
    # Also where both are equal.
    np.testing.assert_array_equal(gradient[:, :3], [[1, 0, 1], [0, 1, 0]])
    assert jnp.isnan(losses.aggregate(values, "min")[3])


def test_per_bin() -> None:
    got = losses.per_bin(jnp.array([1.0, 2.0, 4.0]), jnp.array([2, 0, 2]), size=4)
    np.testing.assert_array_equal(got, [2, 0, 5, 0])


def test_soft_update_moves_a_fraction_of_the_way() -> None:
    got = optimizers.soft_update(
        {"w": jnp.array(10.0)}, {"w": jnp.array(20.0)}, rate=0.1
    )
    assert got["w"] == pytest.approx(11.0)


def test_the_global_norm_is_of_small_and_large_parameters() -> None:
    # 3 * 4 threes and 600 * 1000 twos: sqrt(12 * 9 + 600,000 * 4) = 1549.228...
    tree = {"small": jnp.full((3, 4), 3.0), "large": jnp.full((600, 1000), 2.0)}
    sizes = sorted(leaf.size for leaf in jax.tree.leaves(tree))
    assert sizes[0] < optimizers._SMALL < sizes[1]
    assert optimizers.global_norm(tree) == pytest.approx(2_400_108**0.5, rel=1e-6)
    assert optimizers.global_norm({"large": tree["large"]}) == pytest.approx(
        2_400_000**0.5, rel=1e-6
    )


def test_clipping_is_by_the_global_norm_of_all_networks() -> None:
    # |(3, 4)| = 5 is clipped to 1 as a whole, (0.6, 0.8); Adam's first moment is a
    # tenth of that.
    transform = optimizers.adam(1.0, clip_norm=1.0)
    params = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    gradient = {"a": jnp.array(3.0), "b": jnp.array(4.0)}
    _, state = transform.update(gradient, transform.init(params), params)
    moment = state[1][0].mu
    assert moment["a"] == pytest.approx(0.06)
    assert moment["b"] == pytest.approx(0.08)
