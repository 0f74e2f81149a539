"""Checks that nulls.c passes NULL for every pointer of every function of ftcache.h.

    python3 nulls.py ftcache.h nulls.c
"""

import re
import sys


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def functions(header):
    """Each function's name, and its parameters as they are declared."""
    declared = re.findall(r"\b(ftcache_\w+)\(([^()]*)\);", without_comments(header))
    return {name: [part.strip() for part in parameters.split(",")] for name, parameters in declared}


def calls(test):
    """Each call's function and its arguments, those inside other calls too."""
    test = without_comments(test)
    for match in re.finditer(r"\b(ftcache_\w+)\(", test):
        arguments, depth, at = [""], 0, match.end()
        while depth >= 0:
            letter = test[at]
            depth += (letter == "(") - (letter == ")")
            if letter == "," and depth == 0:
                arguments.append("")
            elif depth >= 0:
                arguments[-1] += letter
            at += 1
        yield match[1], [argument.strip() for argument in arguments]


def main():
    header, test = (open(path, encoding="utf-8").read() for path in sys.argv[1:])
    seen = {(name, index) for name, given in calls(test) for index, value in enumerate(given) if value == "NULL"}
    known = functions(header)
    pointers = [
        (name, index, parameter)
        for name, parameters in known.items()
        for index, parameter in enumerate(parameters)
        if "*" in parameter
    ]
    # Fewer mean that this script does not read the header as it is any more.
    assert len(known) >= 89 and len(pointers) >= 190, f"{len(known)} functions, {len(pointers)} pointers"
    missing = [(name, parameter) for name, index, parameter in pointers if (name, index) not in seen]
    for name, parameter in missing:
        print(f"nulls.c never gives NULL to {name} for {parameter}")
    return 1 if missing else 0


sys.exit(main())
