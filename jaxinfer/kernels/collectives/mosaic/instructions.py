"""PTX instructions of one thread in an exchange through peer buffers; called by `peer_buffer.py`.

Exchanges are numbered modulo 2**32: decoding makes as many within a few days. A wait compares
numbers for equality, so that data of an earlier exchange is never taken for this one's, however
long ago it was (except exactly 2**32 - 2 exchanges).

A wait ends after 20 seconds: the partner's launch may have failed, and nothing else takes a
spinning kernel off a GPU. The launches of one step on two GPUs are milliseconds apart; 20 seconds
leave room for a host that is stopped in between. The wait then returns NaN, which fails every row
of the step (its `ok` flag), here and, as this GPU goes on sending, on the others. Waits of the same
GPU that find nothing within a second of that end at once, or a step with its hundreds of waits
would take hours. Nothing has to be cleared afterwards.
"""

STORE = "st.relaxed.sys.global.v4.b32 [$0], {$1, $2, $3, $4};"
LOAD = "ld.relaxed.sys.global.v4.b32 {$0, $1, $2, $3}, [$4];"
# Numbers wrap around: after the largest comes 2, so that odd ones and even ones still take turns,
# and none is 0, the value of memory that has not been written yet.
_NEXT = "add.u32 {0}, {0}, 1; setp.eq.u32 wraps, {0}, 0; @wraps mov.b32 {0}, 2;"
COUNT = "{ .reg .pred wraps; ld.relaxed.sys.global.b32 $0, [$1]; " + _NEXT.format("$0") + " }"
_FIRST = "{ .reg .pred first; setp.eq.u32 first, $2, 0; @first %s [$0], $1; }"
KEEP = _FIRST % "st.relaxed.sys.global.b32"
RAISE = _FIRST % "st.release.sys.global.b32"

_LOOKS = 256  # between two looks at the clock; a fraction of a millisecond
_LIMIT_NS = 20 * 10**9
_RECENT_NS = 10**9
_NAN = 0x7FFF7FFF  # two of them, in bfloat16 and float16 alike
# After a look that found nothing: another one, or NaN when the wait has timed out.
_WAIT = f"""
    add.u32 looks, looks, 1;
    rem.u32 rest, looks, {_LOOKS};
    setp.ne.u32 again, rest, 0;
    @again bra LOOK;
    mov.u64 now, %globaltimer;
    setp.eq.u64 again, start, 0;
    @again mov.b64 start, now;
    sub.u64 passed, now, start;
    setp.gt.u64 late, passed, {_LIMIT_NS};
    @late bra LATE;
    ld.relaxed.sys.global.b64 passed, [$GIVEN_UP];
    sub.u64 passed, now, passed;
    setp.gt.u64 again, passed, {_RECENT_NS};
    @again bra LOOK;
LATE:
    st.relaxed.sys.global.b64 [$GIVEN_UP], now;"""
_WAITING = """.reg .pred again, late;
    .reg .b32 looks, rest;
    .reg .b64 start, now, passed;
    mov.b32 looks, 0;
    mov.b64 start, 0;"""
# The flag is this exchange's, or the next one's where the partner is that far already. An older
# one may have any distance, for packets raise none. Every thread looks, and acquires, for itself.
AWAIT = f"""{{
    .reg .pred wraps, came;
    .reg .b32 flag, next;
    {_WAITING}
    mov.b32 next, $2;
    {_NEXT.format("next")}
    mov.b32 $0, 0;
LOOK:
    ld.acquire.sys.global.b32 flag, [$1];
    setp.eq.u32 came, flag, $2;
    @came bra DONE;
    setp.eq.u32 came, flag, next;
    @came bra DONE;
{_WAIT.replace("GIVEN_UP", "3")}
    mov.b32 $0, {_NAN};
DONE:
}}"""
# Each 8 bytes are stored and loaded whole, for they are one element of the vector.
POST = """{
    .reg .pred other;
    .reg .b64 left, right;
    setp.ge.u32 other, $4, $5;
    mov.b64 left, {$1, $3};
    mov.b64 right, {$2, $3};
    @!other st.relaxed.sys.global.v2.b64 [$0], {left, right};
}"""
RECEIVE = f"""{{
    .reg .pred early, other;
    .reg .b32 number;
    .reg .b64 left, right;
    {_WAITING}
    setp.ge.u32 other, $4, $5;
    @other bra DONE;
LOOK:
    ld.relaxed.sys.global.v2.b64 {{left, right}}, [$2];
    mov.b64 {{$0, number}}, left;
    setp.ne.b32 early, number, $3;
    @early bra EARLY;
    mov.b64 {{$1, number}}, right;
    setp.ne.b32 early, number, $3;
    @!early bra DONE;
EARLY:
{_WAIT.replace("GIVEN_UP", "6")}
    mov.b32 $0, {_NAN};
    mov.b32 $1, {_NAN};
DONE:
}}"""
