-- The layout of a key's data. This file precedes each script.
--
-- A claim is stored as it was sent:
--   4 bytes length of what follows; 1 byte each flags and at most once; 8 bytes TTL;
--   16 bytes token; 1 byte mode (store.Mode); 4 bytes each permits and weight; 1 byte
--   length of the owner, and the owner; 8 bytes each pushed TTL and placettl; 32 bytes
--   fingerprint; 8 bytes each max age and grace; 16 bytes the token of From
-- Trailing zero bytes after the owner are cut; ZEROS, twice, restores them. Flag 1: a Try
-- or Queue without From. Flag 2: a record can answer such a claim. The pushed TTL is that
-- of a pushed grant; 0: the claim must not be granted that way.
--
-- The state of a key (…:s):
--   1 byte version; 8 bytes each free and queue; 1 byte abandoned; then the leases, and with
--   abandoned = 1 behind them the abandoned row, each
--   8 bytes each place and inherits; 1 byte saved; 8 bytes each number, fence, since and
--   ends; and the claim
-- free      since when a reserved place has blocked a claim; 0: no claim is blocked
-- queue     when all places will have ended; 0: there are no places
-- place     the number at which the lease was granted; 0 for none
-- inherits  the fence of the lease whose progress this lease, or the next one, inherits;
--           0 for none
-- saved     1: the lease has progress in …:p
-- number    1 + the number of leases abandoned in a row before; of the abandoned row,
--           that number
-- ends      when the lease ends, or ended
--
-- Places are in …:q, a sorted set of members by number, and …:w, a hash of token to place.
-- A member is 1 byte, 1 for a reserved place and 0 for a waiter, and the token. So the
-- waiters at a number come before its reserved place.
-- A place is
--   8 bytes each ends, number, grace and asked; the channel and a zero byte; the claim
-- asked     when Reserve last asked for it; 0 for a waiter
-- channel   where the waiter's process listens; '?': it is about to, and the waiter will
--           ask again then; '': it does not listen; an r ends that of a process that
--           relays (store.Relayer). '!': only the number of such a waiter is kept, until it asks again
--
-- The record (…:r) is 1 byte version, 8 bytes each written and ends, 16 bytes token, 32
-- bytes fingerprint, and the data. The progress of leases is in …:p, a hash by fence.
--
-- The listed names are those of states that an operator looks for: with places, with a lease
-- that ends MINUTE or more after its grant, or with one that may run at most once. They are in a
-- sorted set, by when the states expire, in ms. An expired state's name stays for a while. The set
-- has an empty name, too, so that it always exists: while a cluster's slot is moved, the server
-- refuses a call with a name that does not.
--
-- All times are the server's, in µs. Zero bytes mean none. Everything but the fence and the
-- listed names has an expiry.

local spread = unpack
local KEYS, ARGV = KEYS, ARGV
local call, pcall_redis, pack, unpack = redis.call, redis.pcall, struct.pack, struct.unpack
local sub, max, min, ceil, floor = string.sub, math.max, math.min, math.ceil, math.floor

local VERSION = 1
local RECORD = '>BI8I8c16c32'
local LEASE = '>xxxxxBxxxxxxxxc16xI4I4Bc0xxxxxxxxxxxxxxxxc32' -- the fields of a claim that a lease needs
local ZEROS = string.rep('\0', 41)

-- The state of a key with one lease, and nothing else, is PLAIN (VERSION first), fence, since, ends and claim.
local PLAIN = '\1' .. ZEROS .. '\1'
local P_SINCE, P_CLAIM, P_TOKEN = 52, 68, 82

local MINUTE = 60 * 1000000
local MEMORY = 24 * 3600 * 1000000 -- store.AbandonedRetention
local FOREVER = 3650 * MEMORY      -- for an unknown outcome

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local WRONG = 'WRONGTYPE the value is not one that this version of dibs has written'

local function digits(n)
  return string.format('%.0f', n)
end

-- memory returns how long an abandoned lease is kept, at least.
local function memory(once)
  return once == 1 and FOREVER or MEMORY
end

-- highest returns the highest fence so far.
local function highest()
  local fence = tonumber(call('GET', KEYS[1]) or 0)
  if not fence or fence > 2 ^ 53 - MEMORY then error(WRONG, 0) end
  return fence
end

local added = 0 -- to the listed names

-- list adds names of states to the listed names, each behind its state's expiry.
local function list(...)
  added = added + select('#', ...) / 2
  pcall_redis('ZADD', KEYS[2], ...)
end

local function unlist(...) pcall_redis('ZREM', KEYS[2], ...) end

-- finished ends a script: it writes the highest fence if that has risen. Now and then it removes
-- names of expired states: more than scripts add. It does that last, because a script that has
-- written may write on a server that is out of memory.
local function finished(mark, given)
  if given > mark then
    pcall_redis('SET', KEYS[1], digits(given))
    if mark == 0 then list('+inf', '') end
  end
  if (given > mark or added > 0) and now % 128 <= added then
    local over = pcall_redis('ZRANGE', KEYS[2], 0, '(' .. digits(floor(now / 1000)), 'BYSCORE', 'LIMIT', 0, 500)
    if over[1] then unlist(spread(over)) end
  end
end

-- record_of returns the value of a record.
local function record_of(token, print, retention, data)
  return pack(RECORD, VERSION, now, now + retention, token, print) .. data
end
