"""One update of a training state, and the compiled call that does many of them."""
