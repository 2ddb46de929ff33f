"""`import softindex` is light, and its products load when they are first used."""

import subprocess
import sys


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_softindex_does_not_import_torch():
    run("import sys, softindex; assert 'torch' not in sys.modules; assert 'softindex.mol' not in sys.modules")


def test_products_are_attributes_of_the_package():
    run("import softindex; softindex.train.SampledSoftmaxLoss; softindex.mol.build")
    run("import sys, softindex.adaptive; assert 'torch' not in sys.modules; softindex.adaptive.Head")
    run("import softindex; assert {'mol', 'train'} <= set(dir(softindex))")


def test_without_torch_the_error_has_the_pip_line():
    block = "import sys; sys.modules['torch'] = None; import softindex\n"
    printed = run(
        block + "softindex.mol.build\n"
        "try: softindex.train\n"
        "except softindex.MissingDependencyError as error: print(error)\n"
        "try: softindex.adaptive.Head\n"
        "except softindex.MissingDependencyError as error: print(error)"
    )
    assert "Head needs torch" in printed
    assert 'pip install ".[train]"' in printed
    run(block + "from softindex import *")


def test_an_unknown_attribute_is_an_attribute_error():
    run("import softindex; assert not hasattr(softindex, 'trian')")


def test_the_import_loads_nothing_heavy_and_an_index_loads_without_faiss():
    heavy = "('faiss', 'typer', 'rich', 'torch', 'ray', 'httpx', 'starlette')"
    run(f"import sys, softindex; assert 'numpy' not in sys.modules; assert not set({heavy}) & set(sys.modules)")
    run(
        "import sys, softindex; softindex.load, softindex.open, softindex.build, softindex.Index, softindex.Client\n"
        f"softindex.AdaptiveSoftmax; assert not set({heavy}) & set(sys.modules)"
    )


def test_every_public_name_is_there():
    run("import softindex; [getattr(softindex, name) for name in softindex.__all__]; softindex.__version__.split('.')")
    run("from softindex import *; build, load, Index, InputError, Draws, mol")
