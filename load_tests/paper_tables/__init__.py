"""Tables and figures of the papers, run again: what they print beside what these learners do."""
