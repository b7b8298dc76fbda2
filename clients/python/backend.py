"""Builds the package, as PEP 517 says, without setuptools: so `pip install ./clients/python` needs no index."""

import base64
import hashlib
import os
import re
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def read(name):
    with open(os.path.join(HERE, name), "rb") as file:
        return file.read()


def field(name):
    """Return a field of [project]."""
    return re.search(rf'^{name} = "(.*)"$', read("pyproject.toml").decode(), re.M)[1]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    version = re.search(r'^__version__ = "(.*)"$', read("dibs/__init__.py").decode(), re.M)[1]
    name, info = f"dibs-{version}-py3-none-any.whl", f"dibs-{version}.dist-info"
    metadata = (f"Metadata-Version: 2.1\nName: dibs\nVersion: {version}\nSummary: {field('description')}\nAuthor: The dibs authors\n"
                f"License: Apache-2.0\nRequires-Python: {field('requires-python')}\nProject-URL: Homepage, {field('Homepage')}\n"
                f"Classifier: Programming Language :: Python :: 3\nClassifier: Typing :: Typed\n"
                "Description-Content-Type: text/markdown\n\n").encode() + read("README.md")
    files = {f"dibs/{each}": read(f"dibs/{each}") for each in sorted(os.listdir(os.path.join(HERE, "dibs"))) if each.endswith((".py", "py.typed"))}
    files[f"{info}/METADATA"] = metadata
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: dibs\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    licence = next((path for path in ("LICENSE", "../../LICENSE") if os.path.exists(os.path.join(HERE, path))), None)
    if licence:
        files[f"{info}/LICENSE"] = read(licence)
    record = [f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
              for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), 315_532_800))[:6]
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, when)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return name
