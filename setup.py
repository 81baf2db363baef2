"""Packaging. Name and Python version stand in pyproject.toml, which nbdev_export writes; the rest comes from settings.ini."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

parser = ConfigParser()
parser.read("settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]
package = cfg["lib_path"]
spdx = {"apache2": "Apache-2.0"}  # nbdev's name of the licence to everyone else's
stages = {"3": "3 - Alpha", "4": "4 - Beta", "5": "5 - Production/Stable"}

setup(
    version=cfg["version"],
    description=cfg["description"],
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    url=cfg["git_url"],
    license=spdx[cfg["license"]],
    keywords=cfg["keywords"].split(),
    classifiers=[f"Development Status :: {stages[cfg['status']]}", "Programming Language :: Python :: 3"],
    packages=[package],
    package_data={package: ["*.csv", "*.json"]},
    install_requires=cfg["requirements"].split(),
    extras_require={extra: " ".join(cfg[f"{part}_requirements"] for part in parts).split() for extra, parts in {"data": ["data"], "tensorboard": ["tensorboard"], "soap": ["soap"], "dev": ["data", "soap", "dev"]}.items()},
    entry_points={"nbdev": [f"{cfg['lib_name']}={package}._modidx:d"]},
)
