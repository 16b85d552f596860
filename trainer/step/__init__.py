"""One update, and the compiled call that does many."""
