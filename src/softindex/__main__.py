"""`python -m softindex` is the command line."""

from softindex.cli import main

if __name__ == "__main__":
    main()
