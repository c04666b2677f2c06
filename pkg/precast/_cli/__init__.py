"""The command line. One module per verb: ``add`` declares its arguments, ``run`` returns the exit status."""
