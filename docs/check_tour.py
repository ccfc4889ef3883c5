"""Does docs/tour.md still show what the tool prints? `python docs/check_tour.py` runs each command of the
tour (blocks that start with `$ `) and names the first line of an excerpt that is no longer in its output. A
line of three dots stands for lines left out, dots inside a line for any text. Exits with 1 if a line is gone.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```\n\$ ([^\n]+)\n(.*?)```", re.DOTALL)


def main() -> int:
    missing = 0
    text = (ROOT / "docs" / "tour.md").read_text()
    for command, excerpt in BLOCK.findall(text):
        lines = iter([line.strip() for line in printed(command).splitlines()])
        for wanted in (line.strip() for line in excerpt.splitlines()):
            shape = re.compile(re.escape(wanted).replace(r"\.\.\.", ".*"))
            if wanted not in ("", "...") and not any(shape.fullmatch(line) for line in lines):
                print(f"{command}\n  no longer prints: {wanted}")
                missing += 1
                break
    return 1 if missing else 0


@functools.cache
def printed(command: str) -> str:
    """The output of a command, run with the environment's own tools."""
    program, *arguments = shlex.split(command)
    tool = [sys.executable] if program == "python" else [str(Path(sys.executable).parent / program)]
    done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
