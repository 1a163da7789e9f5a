"""O-DCA: online dual coordinate ascent."""
