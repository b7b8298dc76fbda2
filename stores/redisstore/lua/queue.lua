-- The places of a key's queue, and the processes that listen for their waiters.

local RELAYED = 'r' -- ends the channel of a process that relays
local listening = { [''] = false, [PENDING] = false, [KEPT] = false } -- by channel

-- listens reports whether the waiter's process listens. It is asked before the grant,
-- because PUBLISH counts only the master's own subscribers, and a grant must not be
-- published before it is certain.
local function listens(x)
  if listening[x.channel] == nil then
    listening[x.channel] = call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', x.channel)[2] > 0
  end
  return listening[x.channel]
end

-- publish sends a message to a waiter, once a step.
local function publish(k, x, message)
  if k.notified[x.token] or not listens(x) then return end
  k.notified[x.token] = true
  call(sharded and 'SPUBLISH' or 'PUBLISH', x.channel, message)
end

local function read_place(v)
  local ends, number, grace, asked, channel, at = unpack(PLACE, v)
  local x = read(sub(v, at))
  x.ends, x.place, x.grace, x.asked, x.channel = ends, number, grace, asked, channel
  return x
end

local function write_place(k, x)
  call('HSET', k.w, x.token, pack(PLACE, x.ends, x.place, x.grace, x.asked, x.channel) .. x.claim)
end

-- keep_number leaves a waiter its number, and nothing else. x stays the waiter.
local function keep_number(k, x)
  affirm()
  local channel = x.channel
  x.channel = KEPT
  write_place(k, x)
  x.channel, x.kept = channel, true
end

local function member(x)
  return (x.mode == RESERVE and '\1' or '\0') .. x.token
end

-- remove ends a place.
local function remove(k, x)
  k.removed[x.token], k.freed = true, true
  if k.looks then return end
  call('ZREM', k.q, member(x))
  call('HDEL', k.w, x.token)
end

local function place(k, token)
  local v = k.queue > now and not k.removed[token] and call('HGET', k.w, token)
  local x = v and read_place(v)
  if x and x.ends <= now then return remove(k, x) end
  return x or nil
end

-- walk calls f with the places in order, until f returns true. It removes places that
-- have ended. It reads more at a time as it continues, because thousands may have ended.
local function walk(k, f)
  local at, n, stop = 0, 1, false
  while k.queue > now and not stop do
    local members = call('ZRANGE', k.q, at, at + n - 1)
    if #members == 0 then
      if at == 0 then k.queue, k.free, k.changed = 0, 0, true end
      return
    end
    local tokens, over, ended = {}, {}, {}
    for i, m in ipairs(members) do tokens[i] = sub(m, 2) end
    for i, v in ipairs(call('HMGET', k.w, spread(tokens))) do
      local token = tokens[i]
      if not v or unpack('>I8', v) <= now then -- checked before it is read, because thousands may have ended
        over[#over + 1], ended[#ended + 1] = members[i], token
        k.removed[token], k.freed = true, true
      elseif not k.removed[token] and f(read_place(v)) then
        stop = true
        break
      end
      if k.looks or not k.removed[token] then at = at + 1 end
    end
    if #over > 0 and not k.looks then
      call('ZREM', k.q, spread(over))
      call('HDEL', k.w, spread(ended))
    end
    n = min(4 * n, MANY)
  end
end

-- in_the_way is walk over the places that can block others.
local function in_the_way(k, f)
  walk(k, function(x)
    if x.channel == KEPT or leased(k, x.place) then return false end
    if x.mode == RESERVE and x.grace > 0 and k.free > 0 and max(k.free, x.asked) + x.grace <= now then
      remove(k, x) -- its Grace is over
      return false
    end
    return f(x)
  end)
end

-- front returns the place in front: a waiter, or a reserved place without a waiter.
local function front(k)
  local first
  in_the_way(k, function(x)
    first = x
    return true
  end)
  return first
end
