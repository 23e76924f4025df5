"""`python -m anchorlm` is the command `anchorlm`."""

from .cli.__main__ import main

if __name__ == "__main__":
    main()
