"""The package as it is installed: without an index, and with the types of its names."""

import os
import subprocess
import sys
import unittest

import support

TYPED = """
import dibs
import dibs.send
import dibs.testing

keys = dibs.connect("unix:/run/dibs/dibs.sock", secret_keys=True)


@keys.lock("report {day}", wait=0)
def report(day: int) -> str:
    return str(day)


@keys.once("order {id}")
async def charge(id: int) -> int:
    return id


with keys.lock("k", wait="5s", permits=2) as lease:
    fence: int = lease.check().fence
text: str = report(3)
left: float = dibs.testing.Keeper().connect().acquire("k").left
reveal_type(charge)
WRONG
"""


class PackageTest(unittest.TestCase):
    def run_in(self, folder, *command):
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "MYPY_CACHE_DIR": f"{folder}/cache"})
        return done.returncode, done.stdout

    def install(self):
        """Install the package in an empty environment, and return its folder."""
        folder = support.folder()
        self.assertEqual((0, ""), self.run_in(folder, sys.executable, "-m", "venv", "venv"))
        code, said = self.run_in(folder, "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", support.FOLDER)
        self.assertEqual(0, code, said)
        return folder

    def test_install_without_an_index(self):
        folder = self.install()
        code, said = self.run_in(folder, "venv/bin/python", "-I", "-c", "import dibs, dibs.testing, dibs.send; print(dibs.Held, dibs.__file__)")
        self.assertEqual(0, code, said)
        self.assertIn("<class 'dibs.Held'>", said)
        self.assertIn(f"{os.path.realpath(folder)}/venv/lib", said)

    def test_types(self):
        folder = self.install()
        with open(f"{folder}/good.py", "w") as file:
            file.write(TYPED.replace("WRONG", ""))
        check = ("/usr/bin/mypy", "--strict", "--python-executable", "venv/bin/python")
        code, said = self.run_in(folder, *check, "good.py")
        self.assertIn('Revealed type is "def (id: builtins.int) -> typing.Coroutine[Any, Any, builtins.int]"', said)
        self.assertEqual(0, code, said)
        wrong = ("keys.lock(3)", "lease.left = 1.0", "report('monday')", "x: str = lease.ttl", "keys.once(3.0, print)")
        with open(f"{folder}/wrong.py", "w") as file:
            file.write(TYPED.replace("WRONG", "\n".join(wrong)))
        code, said = self.run_in(folder, *check, "wrong.py")
        self.assertEqual((1, len(wrong)), (code, len(set(support.re.findall(r"wrong.py:(\d+): error", said)))), said)

    def test_the_source_is_strict(self):
        code, said = self.run_in(support.FOLDER, "/usr/bin/mypy", "--strict", "--enable-incomplete-feature=Unpack", f"--cache-dir={support.folder()}",
                                 "dibs")
        self.assertEqual(0, code, said)


if __name__ == "__main__":
    unittest.main()
