"""Tables and figures of the papers, reproduced: printed figures and ours."""
