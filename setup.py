"""Settings are in pyproject.toml, except one: model_cards/ lies at the top, for people, and travels in banyan_hf."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["banyan_hf*", "relrep_hf*"]), "banyan_hf.model_cards"],
    package_dir={"banyan_hf.model_cards": "model_cards"},
)
