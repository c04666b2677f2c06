"""``precast.adopt``: recognise what a kernel computes, prove that it rounds alike, and only then replace it."""
