""".npz files."""

import io
import zipfile

import numpy as np
import pytest
from vector_files import VECTORS, WORDS

from softindex.errors import InputError, SoftindexError
from softindex.vectors import read


class TestNpz:
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_the_only_float_matrix_is_taken_with_its_ids(self, save, tmp_path):
        save(
            tmp_path / "v.npz",
            anything=VECTORS,
            ids=np.arange(6) * 10,
            other=np.zeros(3),
            count=np.eye(3, dtype=int),
        )
        source = read(tmp_path / "v.npz")
        np.testing.assert_array_equal(source.vectors, VECTORS)
        assert source.ids.tolist() == [0, 10, 20, 30, 40, 50]

    def test_the_callers_ids_win_and_the_stored_ones_are_not_opened(self, tmp_path):
        np.savez(tmp_path / "v.npz", vectors=VECTORS, ids=np.array(WORDS, object))
        assert read(tmp_path / "v.npz", ids=range(6)).ids.tolist() == list(range(6))
        with pytest.raises(InputError, match="pickled"):
            read(tmp_path / "v.npz")

    def test_string_ids_are_kept(self, tmp_path):
        np.savez(tmp_path / "v.npz", vectors=VECTORS, ids=np.array(WORDS))
        assert read(tmp_path / "v.npz").ids.tolist() == WORDS

    @pytest.mark.parametrize("preferred", ["vectors", "embeddings", "weight", "train"])
    def test_a_preferred_name_settles_it(self, preferred, tmp_path):
        np.savez(tmp_path / "v.npz", **{"other": VECTORS * 2, preferred: VECTORS, "test": VECTORS * 3})
        np.testing.assert_array_equal(read(tmp_path / "v.npz").vectors, VECTORS)

    def test_several_matrices_are_listed_and_one_can_be_named(self, tmp_path):
        path = tmp_path / "v.npz"
        np.savez(path, one=VECTORS, two=VECTORS[:3], ids=np.arange(3))
        with pytest.raises(InputError, match=r"v\.npz::name.*one \(6, 4\) float32, two \(3, 4\) float32"):
            read(path)
        source = read(f"{path}::two")
        np.testing.assert_array_equal(source.vectors, VECTORS[:3])
        assert source.ids.tolist() == [0, 1, 2]
        with pytest.raises(InputError, match="nothing named 'three'; it holds one"):
            read(f"{path}::three")
        with pytest.raises(InputError, match=r"ids' in .* have shape"):
            read(f"{path}::ids")

    def test_no_matrix_at_all_is_refused(self, tmp_path):
        np.savez(tmp_path / "v.npz", a=np.zeros(3))
        with pytest.raises(InputError, match="no matrix"):
            read(tmp_path / "v.npz")
        np.savez(tmp_path / "v.npz")
        with pytest.raises(InputError, match="no arrays at all"):
            read(tmp_path / "v.npz")

    def test_a_long_listing_is_cut_short(self, tmp_path):
        np.savez(tmp_path / "v.npz", **{f"layer{i}": VECTORS for i in range(50)})
        with pytest.raises(InputError, match=r"layer19 .*, and 30 more"):
            read(tmp_path / "v.npz")

    def test_a_header_that_claims_more_than_the_member_holds_is_refused_before_allocating(self, tmp_path):
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }\n"
        member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64
        with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
            archive.writestr("vectors.npy", member)
        with pytest.raises(InputError, match="cut off"):
            read(tmp_path / "v.npz")

    def test_an_archive_that_states_more_than_it_can_hold_is_refused_before_allocating(self, tmp_path):
        claimed = (2 * 10**8, 4)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": claimed})
        with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("vectors.npy", header.getvalue() + np.random.default_rng(0).bytes(100_000))
        content = bytearray((tmp_path / "w.npz").read_bytes())
        place = content.rindex(b"PK\x01\x02") + 24
        content[place : place + 4] = (4 * 4 * claimed[0] + 128).to_bytes(4, "little")
        (tmp_path / "w.npz").write_bytes(content)
        with pytest.raises(InputError, match="more than the file can hold"):
            read(tmp_path / "w.npz")

    def test_an_archive_that_numpy_does_not_write_is_refused(self, tmp_path):
        np.save(tmp_path / "vectors.npy", VECTORS)
        with zipfile.ZipFile(tmp_path / "v.npz", "w", zipfile.ZIP_LZMA) as archive:
            archive.write(tmp_path / "vectors.npy", "vectors.npy")
        with pytest.raises(InputError, match="NumPy does not write"):
            read(tmp_path / "v.npz")

    def test_damage_anywhere_is_refused_or_harmless(self, tmp_path, put):
        np.savez(tmp_path / "v.npz", vectors=VECTORS)
        whole = (tmp_path / "v.npz").read_bytes()
        for place in range(0, len(whole), 3):
            damaged = whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
            for content in (damaged, whole[:place]):
                try:
                    vectors = read(put("damaged.npz", content)).vectors
                except SoftindexError:
                    continue
                # The checksum covers every value, so what still reads is a change of some unused field.
                np.testing.assert_array_equal(vectors, VECTORS)
