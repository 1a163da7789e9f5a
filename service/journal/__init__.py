"""The journal: what was acknowledged, in order, durable; the stores behind one contract."""
