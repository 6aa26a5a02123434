"""The command, as ``kvplan`` and as ``python -m kvplan``."""

import signal

from kvplan.errors import ExitCode


def main() -> int:
    """Run the command line of the process.

    Before it begins and after it has ended there is nothing to tidy up: Ctrl-C ends the process there and then.
    """
    caught = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as behind nohup
    try:
        if caught:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from kvplan.cli.app import main as run

        if caught:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
        if caught:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return code
    except KeyboardInterrupt:  # between two lines of these
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
