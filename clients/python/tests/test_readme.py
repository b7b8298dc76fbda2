import os
import re
import unittest

import support

import dibs

with open(os.path.join(support.FOLDER, "README.md")) as page:
    README = page.read()


class ReadmeTest(support.Case):
    def test_the_programs_run_as_printed(self):
        said = []
        for text in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S):
            script = self.script(text)
            said.append(script.output())
            self.assertEqual(0, script.ended(), text)
        self.assertRegex(said[0], r"\Apage 0 with fence \d+\npage 1 with fence \d+\npage 2 with fence \d+\n100\n\Z")
        self.assertEqual("held\n{'charged': 100}\n", said[1])

    def test_the_guide(self):
        with open(os.path.join(support.FOLDER, "..", "..", "docs", "guides", "testing-your-code.md")) as page:
            script = self.script(re.search(r"^```py\n(.*?)^```", page.read(), re.M | re.S)[1])
        script.output()
        self.assertEqual(0, script.ended())

    def test_every_error_is_in_the_table(self):
        for name, kind in vars(dibs).items():
            if isinstance(kind, type) and issubclass(kind, dibs.Error) and kind is not dibs.Error:
                self.assertIn(f"| `{name}` |", README)
                self.assertIn(name, dibs.__all__)


if __name__ == "__main__":
    unittest.main()
