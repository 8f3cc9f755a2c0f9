# Runs test modules of CPython's own (Debian's libpython3-testsuite), each method by itself, and writes what became of each into a file: "ok", "skipped", "failed" and why.
# Arguments: the file, the module's name below `test`. The working directory and TMPDIR are where the module works.
import os
import sys
import traceback
import unittest


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


class Result(unittest.TestResult):
    def __init__(self, out):
        super().__init__()
        self.out = out
        self.current = {}

    def startTest(self, test):
        super().startTest(test)
        self.current[test.id()] = []
        self.say("begun", test.id(), "")

    def say(self, word, name, why):
        # By the descriptor: a test may die at any moment, or close what Python has open.
        os.write(self.out, f"{word}\t{name}\t{why}\n".encode("utf-8", "backslashreplace"))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.current.setdefault(test.id(), []).append(("skipped", last_line(str(reason))))
        if not hasattr(test, "_testMethodName"):
            self.say("skipped", test.id(), last_line(str(reason)))

    def trouble(self, test, error):
        text = last_line("".join(traceback.format_exception(*error)))
        name = test.id()
        if hasattr(test, "test_case"):
            name = test.test_case.id()
        self.current.setdefault(name, []).append(("failed", text))
        if name not in self.current or not hasattr(test, "_testMethodName") and not hasattr(test, "test_case"):
            self.say("failed", name, text)

    def addError(self, test, error):
        super().addError(test, error)
        self.trouble(test, error)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.trouble(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.trouble(test, error)

    def stopTest(self, test):
        super().stopTest(test)
        outcomes = self.current.pop(test.id(), [])
        word, why = next((outcome for outcome in outcomes if outcome[0] == "failed"), outcomes[0] if outcomes else ("ok", ""))
        self.say(word, test.id(), why)


def main():
    place, name = sys.argv[1:3]
    out = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    # Out of the way of tests that look for low free numbers.
    out, low = os.dup2(out, 197, inheritable=False), out
    os.close(low)
    sys.argv = [sys.argv[0]]
    from test import support

    # No network, no long runs, no audio, no terminals.
    support.use_resources = ["subprocess"]
    support.verbose = 0
    from test.support import os_helper, threading_helper

    module = "test." + name
    with os_helper.temp_cwd("work"):
        suite = unittest.defaultTestLoader.loadTestsFromName(module)
        result = Result(out)
        suite.run(result)
        support.gc_collect()
    result.say("ended", module, "")


if __name__ == "__main__":
    main()
