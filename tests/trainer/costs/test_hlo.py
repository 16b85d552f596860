"""Programs that XLA compiles for CPUs, and lines from programs for TPUs."""

import jax
import jax.numpy as jnp
import pytest

from trainer.costs import hlo

TPU = """HloModule jit_f, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }, entry_computation_layout={}

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(128)} parameter(0)
  ROOT %t = f32[8]{0:T(128)} tanh(%p)
}

%inner (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]{0:T(128)}) parameter(0)
  %g = f32[8]{0:T(128)} get-tuple-element(%q), index=1
  %f = f32[8]{0:T(128)} fusion(%g), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"7"}}
  ROOT %r = (s32[], f32[8]{0:T(128)}) tuple(%g, %f)
}

%until (q: (s32[], f32[8])) -> pred[] {
  %n = s32[]{:T(128)} constant(10)
  %q.1 = (s32[], f32[8]{0:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%q.1), index=0
  ROOT %c = pred[]{:T(512)} compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(128)} parameter(0)
  %b = f32[8]{0:T(128)} custom-call(), custom_call_target="AllocateBuffer"
  %s = (f32[8]{0}, f32[8]{0}) copy-start(%x)
  %d = f32[8]{0} copy-done(%s)
  %w = (s32[], f32[8]{0:T(128)}) while(%d), condition=%until, body=%inner
  ROOT %y = f32[8]{0:T(128)} fusion(%d), kind=kLoop, calls=%fused, backend_config={"window_config":{"estimated_cycles":"5"}}
}
"""  # noqa: E501


def test_a_program_for_tpus_is_read() -> None:
    module = hlo.parse_module(TPU)
    assert module.entry == "main"
    assert module.donated == 2
    # A copy and a fusion run once, another fusion runs ten times.
    assert hlo.count_kernels(module) == 12
    assert hlo.sum_estimated_cycles(module) == 5 + 10 * 7
    inside = [
        each for each in hlo.walk_executions(module, fused=True) if each.fused_into
    ]
    assert {each.instruction.name for each in inside} == {"p", "t"}
    tanh = [each.loops for each in inside if each.instruction.operation == "tanh"]
    assert tanh == [(10,), ()]


def test_loops_of_a_program_of_this_machine_are_counted() -> None:
    def call(x: jax.Array) -> jax.Array:
        def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x @ x), None), x, length=7)
            return x, None

        return jax.lax.scan(outer, x, length=5)[0]

    module = hlo.parse_module(
        jax.jit(call).lower(jnp.ones((64, 64))).compile().as_text()
    )
    loops = {each.loops for each in hlo.walk_executions(module)}
    assert loops == {(), (5,), (5, 7)}
    assert hlo.sum_estimated_cycles(module) is None


def test_a_loop_that_does_not_count_is_no_guess() -> None:
    module = hlo.parse_module(TPU.replace("direction=LT", "direction=NE"))
    with pytest.raises(ValueError, match="a loop that counts, got w until until"):
        hlo.count_kernels(module)
    with pytest.raises(ValueError, match="found no entry"):
        hlo.parse_module("HloModule nothing")
