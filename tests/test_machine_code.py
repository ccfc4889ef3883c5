"""Machine code that is read: listings, ways through them, and what an SM holds."""

from __future__ import annotations

import pytest
from benchmarks.cartpole_code import held, way_facts
from benchmarks.machine_code import counted, kind_of, loops, main_loop, parsed, resident, way

from cleave.errors import BuildError

LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 EXIT ;
.L_x_1:
        /*0020*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
.L_x_3:
        /*0040*/                   IMAD R5, R4, R4, RZ ;
        /*0050*/               @P2 BRA `(.L_x_3) ;
.L_x_2:
        /*0060*/                   FADD R5, R4, 1 ;
        /*0070*/                   MUFU.RCP R6, R5 ;
        /*0080*/               @!P3 STG.E desc[UR4][R8.64], R6 ;
        /*0090*/               @!P3 STG.E.U8 desc[UR4][R10.64], R7 ;
        /*00a0*/               @P4 BRA `(.L_x_1) ;
        /*00b0*/                   STG.E desc[UR4][R8.64], R6 ;
        /*00c0*/                   EXIT ;
.L_x_4:
        /*00d0*/                   BRA `(.L_x_4);
"""


def test_a_step_is_counted_on_the_way_without_detours() -> None:
    code = parsed(LISTING)
    assert len(code) == 14
    assert loops(code) == [range(4, 6), range(2, 11), range(13, 14)]
    assert main_loop(code) == range(2, 11)
    taken = way(code, 2, [10], range(2, 11))
    assert taken == [2, 3, 6, 7, 8, 9, 10], "the inner loop is left out"
    assert counted(code, taken) == {"load": 1, "other": 2, "float": 1, "special": 1, "store": 2}
    facts = way_facts(code, 4)
    assert facts["loop_steps"] == 1 and facts["loop_per_step"] == 7
    assert facts["outside"] == 4, "two before the loop, two behind it; the guarded exit is no end"
    assert facts["per_step"] == pytest.approx(7 + 4 / 4)
    assert way_facts(code, 1)["per_step"] == 11


def test_a_branch_to_nowhere_is_no_listing() -> None:
    with pytest.raises(BuildError, match=r"branches to \.L_x_9"):
        parsed("        /*0000*/                   BRA `(.L_x_9) ;\n")


def test_kinds_of_instructions() -> None:
    assert [kind_of(n) for n in ("FFMA.FTZ", "MUFU.SIN", "LOP3.LUT", "I2FP.F32.S32", "LDL", "BRA")] == [
        "float", "special", "integer", "convert", "local", "other",
    ]  # fmt: skip


def test_what_an_sm_holds() -> None:
    assert resident(32, 0, 4) == 16, "64 warps"
    assert resident(64, 0, 1) == 32, "32 blocks, though registers would do for as many warps"
    assert resident(128, 0, 4) == 4, "16 warps by registers"
    assert resident(32, 100 << 10, 4) == 2, "shared memory"
    assert held(58, 0, 1, 64)["resident_warps"] == pytest.approx(64 / 132)
