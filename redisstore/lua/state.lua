-- What every script knows of a key. It stands in front of each verb.
--
-- The state of a key is one value (…:s), a MessagePack array:
--   version, permits, abandoned, queue, progress, holders, lost, locks
-- permits    what holders and places agreed on
-- abandoned  how many leases in a row were abandoned
-- queue      0, or when (µs) the last place that can stand will have run out
-- progress   1 when …:p has something
-- holders    those who hold the key, or are offered it
-- lost       the last lease that was abandoned, as a holder; false when none
-- locks      true when no record can answer anybody in the queue; none otherwise
--
-- As long as one holds the key and nothing else is to be known of it, the value
-- is plain instead, because that is quick to write and to read: 1 byte version,
-- 8 bytes each fence, since and ends, the claim as it was sent (see claim.lua:
-- 3 bytes flags, mode and once, 4 bytes permits, 8 bytes each TTL, place and max
-- age, 16 bytes each token and redeems, 32 bytes fingerprint), and the owner.
--
-- A holder is an array:
--   token, fence, number, since, ends, offered, once, fingerprint, owner,
--   inherits, place
-- number     1 + how many leases in a row were abandoned before
-- ends       when the lease runs out; of a lost one, when it did
-- offered    1 until it is confirmed; nothing is abandoned if it runs out
-- once       1 when the outcome is unknown if it runs out
-- inherits   1 when there is progress of those before it
-- place      the reserved place that it has taken, with its token; or false
--
-- Who waits is in two: …:q, a sorted set of tokens by the order in which they
-- came, and …:w, a hash of token to place. A place is an array:
--   ends, reserved, maxage, fingerprint, once, owner, channel, tells, called,
--   parked, order, stands, token, hold, pressed
-- reserved   1 when it is not granted in its absence
-- channel    where its process listens; '' when it does not
-- tells      1 when a grant may be told with all that is to know of it
-- called     1 when a reserved one was told that its turn has come; of a taken
--            one, 0 when somebody waits for the end of the lease
-- parked     1 when nobody listened as its turn came: it is out of …:q, and
--            comes back to its place when it asks
-- stands     how long it was last asked to stand
-- hold       how long a reserved one may be in others' way; none when as long as it
--            stands
-- pressed    true when that counts, and the place runs out with it
--
-- The record (…:r) is 1 byte version, 8 bytes written (µs), 8 bytes ends (µs),
-- 16 bytes token, 32 bytes fingerprint, data. What was saved under a lease is in
-- …:p, a hash of token to data, and what is passed on in its field 'i'.
--
-- All times are the server's, in µs. A key expires when nothing of it can
-- matter any more.

local VERSION = 1
local NOBODY = string.rep('\0', 32) -- no fingerprint
local CLAIM_OWNER = 96
local PLAIN_ENDS, PLAIN_TOKEN, PLAIN_PRINT, PLAIN_OWNER = 18, 57, 89, 121
local PERMITS, ABANDONED, QUEUE, PROGRESS, HOLDERS, LOST, LOCKS = 2, 3, 4, 5, 6, 7, 8
local TOKEN, FENCE, NUMBER, SINCE, ENDS, OFFERED, ONCE, PRINT, OWNER, INHERITS, PLACE =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local P_ENDS, P_RESERVED, P_MAXAGE, P_PRINT, P_ONCE, P_OWNER, P_CHANNEL, P_TELLS, P_CALLED,
  P_PARKED, P_ORDER, P_STANDS, P_TOKEN, P_HOLD, P_PRESSED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15

local TURN = 1000000             -- dibs.Turn
local MEMORY = 24 * 3600 * 1000000 -- dibs.AbandonedMemory
local FOREVER = 3650 * MEMORY    -- an unknown outcome; no key is without an expiry
local SLACK = 5000000            -- so that asking again need not write the state
local LOOKED = 4                 -- how many places Left looks at
local UINT64 = 0xcf              -- how MessagePack begins a number as large as a time
local MANY = 500                 -- how many places are read at a time
local SWEPT = 4                  -- how many are looked at for each that is parked

local spread = unpack
local call, pack, unpack = redis.call, cmsgpack.pack, cmsgpack.unpack
local sub, max, min, ceil = string.sub, math.max, math.min, math.ceil

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local WRONG = 'WRONGTYPE the value is not one that dibs has written'

-- highest returns the highest fence so far.
local function highest()
  local fence = tonumber(call('GET', KEYS[1]) or 0)
  if not fence or fence > 2 ^ 53 - MEMORY then error(WRONG, 0) end
  return fence
end

-- insist writes what has been begun and has to be finished, also where the server
-- is out of memory: a script that has written may go on writing. It returns what
-- went wrong, if anything did.
local function insist(...)
  local done = redis.pcall(...)
  if type(done) == 'table' and done.err and string.find(done.err, 'OOM', 1, true) then
    call('PERSIST', KEYS[1]) -- the fence, which has no expiry
    done = redis.pcall(...)
  end
  return type(done) == 'table' and done.err and done or nil
end
