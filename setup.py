"""The distribution `stepgraph`: three import packages at the top level and one console script."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "runtime" / "__init__.py").read_text("utf-8"), re.MULTILINE
)[1]
SERVER = ["starlette>=0.46", "uvicorn>=0.34", "prometheus_client>=0.21"]

setup(
    name="stepgraph",
    version=VERSION,
    description="An LLM inference runtime that mixes prefill and decode in every step",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=find_packages(
        include=[
            f"{name}{suffix}"
            for name in ("runtime", "attention_backends", "graphs")
            for suffix in ("", ".*")
        ]
    ),
    package_data={
        name: ["py.typed", "*.cpp", "**/*.cpp", "*.h", "**/*.h"]
        for name in ("runtime", "attention_backends", "graphs")
    },
    zip_safe=False,
    python_requires=">=3.10,<3.14",
    install_requires=[
        "torch>=2.6",
        "numpy>=1.26",
        "transformers>=4.56,<6",
        "tokenizers>=0.22",
        "safetensors>=0.5",
        "gguf>=0.17",
        "pydantic>=2.10,<3",
        "ruamel.yaml>=0.18",
        "rich>=13",
        "xxhash>=3.4",
        "jinja2>=3.1",
        "psutil>=5.9",
        "filelock>=3.13",
        "msgspec>=0.19",
    ],
    extras_require={
        "charts": ["matplotlib>=3.8"],
        "flash-attention": ["flash-attn>=2.8"],
        "flash-attention-3": ["tokenspeed-fa3>=3.0.0.post20260810"],
        "flashinfer": ["flashinfer-python>=0.7.2"],
        "structured": ["llguidance>=1.9,<2"],
        "server": SERVER,
        "triton": ["triton>=3.2"],
        "test": [
            *SERVER,
            "accelerate>=1",
            "llguidance>=1.9,<2",
            "matplotlib>=3.8",
            "openai>=2",
            "pytest>=8.3",
            "pytest-xdist>=3.6",
            'triton>=3.2; sys_platform == "linux"',
            "httpx>=0.27",
            "hypothesis>=6.100",
            "ruff>=0.17.6,<0.18",
            "mypy>=2.4,<3",
        ],
    },
    entry_points={"console_scripts": ["stepgraph = runtime.cli.main:main"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Typing :: Typed",
    ],
)
