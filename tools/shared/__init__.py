"""Code that several verbs, guards or tests share. A verb is a module of ``tools.verbs``."""
