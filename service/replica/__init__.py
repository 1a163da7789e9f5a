"""One model as a state machine over its journal."""
