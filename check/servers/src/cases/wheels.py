"""Makes wheels by hand, into the directory named by the argument: `greeting` 1 and 2, and `counting`, which they need."""

import base64
import hashlib
import sys
import zipfile


def wheel(directory, name, version, files, entry="", requires=()):
    info = f"{name}-{version}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {other}\n" for other in requires
    )
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: servers\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if entry:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{entry}\n"
    record = ""
    with zipfile.ZipFile(f"{directory}/{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            data = text.encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


GREETING = """
import pathlib, sys
import counting

def data():
    return (pathlib.Path(__file__).parent / "data" / "word").read_bytes()

def main():
    print("hello", *sys.argv[1:], "from VERSION", counting.count(10), sys.prefix, data().decode())
"""

directory = sys.argv[1]
for version in ("1.0", "2.0"):
    modules = {f"greeting/part{n}.py": f"def part():\n    return {n}\n" * 50 for n in range(40)}
    modules |= {"greeting/__init__.py": GREETING.replace("VERSION", version), "greeting/data/word": "word" + version}
    wheel(directory, "greeting", version, modules, "greeting = greeting:main", ["counting"])
wheel(directory, "counting", "0.1", {"counting.py": "def count(n):\n    return sum(range(n))\n"})
