-- What every script knows of a key. It stands in front of each verb.
--
-- A claim is kept as it was sent:
--   4 bytes length of what follows; 1 byte each flags and at most once; 8 bytes TTL;
--   16 bytes token; 1 byte mode (dibs.Mode); 4 bytes each permits and weight; 1 byte
--   length of the owner, and the owner; 8 bytes each turn and stay; 32 bytes
--   fingerprint; 8 bytes each max age and hold; 16 bytes the token that it is from
-- What comes after the owner is without the zero bytes at its end. ZEROS, twice, have them.
-- Of the flags, 1 is for a Try or Queue that is from no place, and 2 for one of these that
-- a record can answer. The turn is how long its lease lasts if it is granted in its absence;
-- 0 when it must not be.
--
-- The state of a key (…:s):
--   1 byte version; 8 bytes each free and queue; 1 byte lost; then the leases, and with
--   lost = 1 behind them the abandoned row, each
--   8 bytes each place and inherits; 1 byte saved; 8 bytes each number, fence, since and
--   ends; and the claim
-- free      since when a reserved place keeps others from the key; 0 when none does
-- queue     when the last place that can stand will have ended; 0 without places
-- place     the number at which the lease was granted; 0 for none
-- inherits  the fence of the lease whose progress the holder was told, or the next one
--           will be; 0 for none
-- saved     1 when there is progress of the lease in …:p
-- number    1 + how many leases in a row were abandoned before; of the abandoned row,
--           how many there were
-- ends      when the lease ends; of the abandoned row, when it did
--
-- The places are in two: …:q, a sorted set of members by number, and …:w, a hash of
-- token to place. A member is 1 byte, 1 for a reserved place and 0 for a waiter, and the
-- token: so the waiters at a number come before the reserved place that they stand for.
-- A place is
--   8 bytes each ends, number, hold and asked; the channel and a zero byte; the claim
-- asked     when Reserve asked for it last; 0 for a waiter
-- channel   where the waiter's process listens; '?' when it is about to, and asks by
--           itself until then; '' when it does not
--
-- The record (…:r) is 1 byte version, 8 bytes each written and ends, 16 bytes token, 32
-- bytes fingerprint, and the data. What was saved under a lease is in …:p, a hash of
-- token to progress.
--
-- All times are the server's, in µs. Zero bytes stand for none. All but the fence has an
-- expiry, and goes when nothing of it can matter any more.

local spread = unpack
local KEYS, ARGV = KEYS, ARGV
local call, pcall_redis, pack, unpack = redis.call, redis.pcall, struct.pack, struct.unpack
local sub, max, min, ceil = string.sub, math.max, math.min, math.ceil

local VERSION = 1
local RECORD = '>BI8I8c16c32'
local LEASE = '>xxxxxBxxxxxxxxc16xI4I4Bc0xxxxxxxxxxxxxxxxc32' -- what matters of a lease's claim
local ZEROS = string.rep('\0', 41)

-- The state of a key with one lease, and nothing else, is PLAIN (VERSION first), fence, since, ends and claim.
local PLAIN = '\1' .. ZEROS .. '\1'
local P_ENDS, P_CLAIM, P_TOKEN = 60, 68, 82

local MEMORY = 24 * 3600 * 1000000 -- dibs.AbandonedRetention
local FOREVER = 3650 * MEMORY      -- of an unknown outcome

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local WRONG = 'WRONGTYPE the value is not one that this version of dibs has written'

local function digits(n)
  return string.format('%.0f', n)
end

-- memory returns how long a lease is remembered, at least, that was abandoned.
local function memory(once)
  return once == 1 and FOREVER or MEMORY
end

-- highest returns the highest fence so far.
local function highest()
  local fence = tonumber(call('GET', KEYS[1]) or 0)
  if not fence or fence > 2 ^ 53 - MEMORY then error(WRONG, 0) end
  return fence
end

-- record_of returns the value of a record.
local function record_of(token, print, retention, data)
  return pack(RECORD, VERSION, now, now + retention, token, print) .. data
end
