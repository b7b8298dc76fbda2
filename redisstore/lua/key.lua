-- What can happen to a key. k is one that is being worked on: the names of its
-- parts, its state st, and whether that has to be written.

local function open(name)
  local base = sub(name, 1, -2)
  local k = { s = name, q = base .. 'q', w = base .. 'w', r = base .. 'r', p = base .. 'p', changed = false }
  local v = call('GET', name)
  if v and v:byte() == VERSION then
    if #v < PLAIN_OWNER - 1 then error(WRONG, 0) end
    local _, fence, since, ends, _, _, once, permits, _, _, _, token, _, print =
      struct.unpack('>BI8I8I8BBBI4I8I8I8c16c16c32', v)
    if print == NOBODY then print = '' end
    k.st = { VERSION, permits, 0, 0, 0,
      { { token, fence, 1, since, ends, 0, once, print, sub(v, PLAIN_OWNER), 0, false } }, false }
    k.found = true
  elseif v then
    local ok, st = pcall(unpack, v)
    if not ok or type(st) ~= 'table' or type(st[1]) ~= 'number' then error(WRONG, 0) end
    if st[1] ~= VERSION then error(WRONG .. ', but perhaps version ' .. st[1] .. ' of it', 0) end
    if type(st[HOLDERS]) ~= 'table' then error(WRONG, 0) end
    k.st, k.found = st, true
  else
    k.st = { VERSION, 1, 0, 0, 0, {}, false }
  end
  return k
end

-- finish is insist, and fails where that does.
local function finish(...)
  local failed = insist(...)
  if failed then error(failed, 0) end
end

-- close writes what has changed.
local function close(k)
  if not k.changed then return end
  local st = k.st
  local ends = st[QUEUE]
  for _, h in ipairs(st[HOLDERS]) do
    local stands = h[PLACE] and h[PLACE][P_STANDS] or 0
    ends = max(ends, h[ENDS] + max(stands, h[ONCE] == 1 and FOREVER or MEMORY))
  end
  if st[LOST] then
    ends = max(ends, st[LOST][ENDS] + (st[LOST][ONCE] == 1 and FOREVER or MEMORY))
  end
  if ends <= now then
    if k.found then call('DEL', k.s) end
    return
  end
  local ms = ceil((ends - now) / 1000)
  if k.found then
    finish('SET', k.s, pack(st), 'PX', ms)
  else
    call('SET', k.s, pack(st), 'PX', ms)
  end
  k.found, k.changed = true, false
  if st[PROGRESS] == 1 then call('PEXPIRE', k.p, ms) end
end

-- affirm fails where the server takes no writes. Then it is no master, and says
-- of nothing that it is not there.
local function affirm()
  call('PERSIST', KEYS[1])
end

local function differs(a, b)
  return a ~= '' and b ~= '' and a ~= b
end

local function unknown(st)
  return st[LOST] and st[LOST][ONCE] == 1
end

local function holder(st, token)
  for i, h in ipairs(st[HOLDERS]) do
    if h[TOKEN] == token then return h, i end
  end
end

-- taken returns the holder whose lease has taken the place of that token.
local function taken(st, token)
  for _, h in ipairs(st[HOLDERS]) do
    if h[PLACE] and h[PLACE][P_TOKEN] == token then return h end
  end
end

local function publish(channel, message)
  if channel == '' then return 0 end
  return call(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- ask tells a token that it should ask again.
local function ask(p, token)
  publish(p[P_CHANNEL], token)
end

local function write_place(k, token, p)
  finish('HSET', k.w, token, pack(p))
end

-- stand makes the queue last as long as that place. afresh is for a queue that
-- may have begun anew.
local function stand(k, ends, afresh)
  if not afresh and ends <= k.st[QUEUE] then return end
  k.st[QUEUE] = max(k.st[QUEUE], ends + SLACK)
  k.changed = true
  local ms = ceil((k.st[QUEUE] - now) / 1000)
  call('PEXPIRE', k.q, ms)
  call('PEXPIRE', k.w, ms)
end

local function order(p)
  return string.format('%.0f', p[P_ORDER])
end

-- insert_place lets a place stand. One that is new is refused where the server is
-- out of memory; others are only put elsewhere.
local function insert_place(k, token, p, new)
  if new then call('HSET', k.w, token, pack(p)) else write_place(k, token, p) end
  if k.st[QUEUE] <= now then k.st[LOCKS] = true end
  if p[P_MAXAGE] > 0 then k.st[LOCKS] = nil end
  local done = redis.pcall('ZADD', k.q, order(p), token)
  if type(done) == 'table' then -- what has no expiry yet must not stay
    call('HDEL', k.w, token)
    error(done, 0)
  end
  stand(k, p[P_ENDS], true)
end

local function remove_place(k, token)
  call('ZREM', k.q, token)
  call('HDEL', k.w, token)
end

-- remove_first removes so many of those tokens.
local function remove_first(k, tokens, n)
  call('ZREM', k.q, spread(tokens, 1, n))
  call('HDEL', k.w, spread(tokens, 1, n))
end

-- place returns the place of a token, if it has one that stands.
local function place(k, token)
  if k.st[QUEUE] <= now then return nil end
  local v = call('HGET', k.w, token)
  if not v then return nil end
  local p = unpack(v)
  if p[P_ENDS] <= now then
    remove_place(k, token)
    return nil
  end
  if p[P_PARKED] == 1 then
    p[P_PARKED] = 0
    insert_place(k, token, p)
  end
  return p
end

-- put_back makes a place stand again after the lease that had taken it.
local function put_back(k, p, from)
  p[P_ENDS] = from + p[P_STANDS]
  p[P_CALLED], p[P_PRESSED] = 0, nil
  if p[P_ENDS] > now then insert_place(k, p[P_TOKEN], p) end
end

-- ended reports whether a place, as it is kept, has run out. It decodes no more than
-- that, because there may be thousands of them.
local function ended(v)
  local ends = v:byte(2) == UINT64 and struct.unpack('>I8', v, 3) or unpack(v)[P_ENDS]
  return ends <= now
end

-- first returns the first in the queue, and its place. Those before it that have
-- run out go, more at a time the more there are: thousands can run out at once.
local function first(k)
  local n = 1
  while true do
    local tokens = call('ZRANGE', k.q, 0, n - 1)
    if #tokens == 0 then
      if call('EXISTS', k.w) == 1 then return nil end -- who is parked may come back
      k.st[QUEUE], k.st[LOCKS] = 0, nil
      k.changed = true
      return nil
    end
    for i, v in ipairs(call('HMGET', k.w, spread(tokens))) do
      if v and not ended(v) then
        if i > 1 then remove_first(k, tokens, i - 1) end
        return tokens[i], unpack(v)
      end
    end
    remove_first(k, tokens, #tokens)
    n = min(4 * n, MANY)
  end
end

local function grant(k, token, ends, print, once, owner)
  local st = k.st
  given = max(given + 1, now)
  local h = { token, given, st[ABANDONED] + 1, now, ends, 0, once, print, owner, 0, false }
  if st[LOST] and st[LOST][INHERITS] == 1 then h[INHERITS] = 1 end
  st[HOLDERS][#st[HOLDERS] + 1] = h
  k.changed = true
  return h
end

-- sweep removes parked places that have run out: while the queue lasts nothing
-- else would. For each one that was parked just now it looks at a few, so that
-- they never become many, and a long queue is never gone through.
local function sweep(k, parks)
  local some = call('HRANDFIELD', k.w, SWEPT * parks, 'WITHVALUES')
  for i = 1, #some, 2 do
    if ended(some[i + 1]) then remove_place(k, some[i]) end
  end
end

-- record returns the fields of a key's record, if it has one that counts.
local function record(k)
  local v = call('GET', k.r)
  if not v then return nil end
  if #v < 65 then error(WRONG, 0) end
  local version, written, ends, token, print = struct.unpack('>BI8I8c16c32', v)
  if version ~= VERSION then
    error(WRONG .. ', but perhaps version ' .. version .. ' of it', 0)
  end
  if ends <= now then return nil end
  if print == NOBODY then print = '' end
  return { written = written, ends = ends, token = token, print = print, data = sub(v, 66) }
end

-- clashes reports whether a holder does something else.
local function clashes(st, print)
  if print == '' then return false end
  for _, h in ipairs(st[HOLDERS]) do
    if differs(h[PRINT], print) then return true end
  end
  return false
end

-- serve offers the key to those in front. It notes in k when somebody took it, and
-- returns how many were parked.
local function serve(k)
  local st, parks = k.st, 0
  while #st[HOLDERS] < st[PERMITS] and not unknown(st) do
    local token, p = first(k)
    if not token then break end
    if p[P_RESERVED] == 1 then
      if p[P_CALLED] == 0 then
        p[P_CALLED] = 1
        write_place(k, token, p)
        ask(p, token)
      end
      break
    end
    if st[LOST] and differs(st[LOST][PRINT], p[P_PRINT]) then
      remove_place(k, token)
      ask(p, token) -- and is told of the mismatch
    else
      -- A grant that is told is a lease from now on: its holder may begin
      -- without asking. What was abandoned takes an answer to tell, and so does that
      -- another holder does something else.
      local told = p[P_TELLS] == 1 and p[P_CHANNEL] ~= '' and not st[LOST] and not clashes(st, p[P_PRINT])
      local heard = 1
      if p[P_CHANNEL] ~= '' then
        -- Counted before it is known what to say: replicas pass on what is published
        -- to others, whom the master does not count, and no grant may be told that
        -- is not made.
        heard = call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', p[P_CHANNEL])[2]
        local message = token
        if told and heard > 0 then
          message = token .. struct.pack('>I8I4', max(given + 1, now), st[ABANDONED] + 1)
        end
        publish(p[P_CHANNEL], message)
      end
      if heard == 0 then
        call('ZREM', k.q, token)
        p[P_PARKED] = 1
        write_place(k, token, p)
        parks = parks + 1
      else
        remove_place(k, token)
        local h = grant(k, token, now + TURN, p[P_PRINT], p[P_ONCE], p[P_OWNER])
        if not told then h[OFFERED] = 1 end
        k.served = true
      end
    end
  end
  return parks
end

-- hand_over offers the key to those in front, as far as there are permits. A
-- reserved place stops it.
local function hand_over(k)
  if k.st[QUEUE] == 0 then return end
  local ok, parks = pcall(serve, k)
  if k.served then -- who was told of it has it, whatever fails then or from here on
    k.served = false
    close(k)
  end
  if not ok then error(parks, 0) end
  if parks > 0 then sweep(k, parks) end
end

-- tell tells those in front that they should ask. Were there more, they find out by
-- themselves: no queue is gone through for that.
local function tell(k)
  if k.st[QUEUE] == 0 then return end
  local tokens = call('ZRANGE', k.q, 0, MANY - 1)
  if #tokens == 0 then return end
  for i, v in ipairs(call('HMGET', k.w, spread(tokens))) do
    if v then ask(unpack(v), tokens[i]) end
  end
end

-- answer takes those whom a record can answer out of the queue, and tells them that
-- they should ask. It looks at all places only if there is one of them.
local function answer(k)
  local st = k.st
  if st[QUEUE] == 0 or st[LOCKS] then return end
  local all = call('HGETALL', k.w)
  for i = 1, #all, 2 do
    local p = unpack(all[i + 1])
    if p[P_MAXAGE] > 0 then
      remove_place(k, all[i])
      ask(p, all[i])
    end
  end
  st[LOCKS], k.changed = true, true
end

-- pass_on keeps what the lease saved for those after it.
local function pass_on(k, h)
  if k.st[PROGRESS] == 0 then return end
  local saved = call('HGET', k.p, h[TOKEN])
  if saved then
    finish('HSET', k.p, 'i', saved)
    call('HDEL', k.p, h[TOKEN])
    h[INHERITS] = 1
  end
end

-- abandon notes that a lease, which is no holder any more, ended then without
-- being settled.
local function abandon(k, h, ended)
  local st = k.st
  k.changed = true
  pass_on(k, h)
  local p = h[PLACE]
  h[ENDS], h[PLACE] = ended, false
  st[ABANDONED] = st[ABANDONED] + 1
  if not st[LOST] or st[LOST][ENDS] <= ended then st[LOST] = h end
  if unknown(st) then tell(k) end
  if p then put_back(k, p, ended) end
end

-- clean forgets what was abandoned: a lease came to a good end, or it is long
-- ago.
local function clean(k, token)
  local st = k.st
  st[ABANDONED], st[LOST] = 0, false
  k.changed = true
  if st[PROGRESS] == 0 then return end
  if token then call('HDEL', k.p, token) end
  for _, h in ipairs(st[HOLDERS]) do
    if h[INHERITS] == 1 then return end
  end
  call('HDEL', k.p, 'i')
  st[PROGRESS] = call('EXISTS', k.p)
end

-- give_up ends the place that a lease had taken.
local function give_up(h)
  local p = h[PLACE]
  if p and p[P_CALLED] == 0 then ask(p, p[P_TOKEN]) end
end

-- fallen returns the places that leases have which ran out, as they stand again.
local function fallen(st)
  local places = {}
  for _, h in ipairs(st[HOLDERS]) do
    local p = h[ENDS] <= now and h[PLACE]
    if p and h[ENDS] + p[P_STANDS] > now then
      p[P_ENDS] = h[ENDS] + p[P_STANDS]
      places[#places + 1] = p
    end
  end
  return places
end

-- undo ends a lease, which is no holder any more, as if it had not been granted.
local function undo(k, h)
  local st = k.st
  k.changed = true
  if st[PROGRESS] == 1 then call('HDEL', k.p, h[TOKEN]) end
  if h[PLACE] then put_back(k, h[PLACE], now) end
  if h[OFFERED] == 1 or st[LOST] then return end
  if h[NUMBER] == 1 then return clean(k) end
  h[ENDS], h[ONCE], h[PLACE] = now, 0, false
  st[ABANDONED], st[LOST] = h[NUMBER] - 1, h
end

-- advance lets time pass: what has run out is dead, and what that frees is
-- handed over.
local function advance(k)
  local st = k.st
  local i = 1
  while i <= #st[HOLDERS] do
    local h = st[HOLDERS][i]
    if h[ENDS] <= now then
      table.remove(st[HOLDERS], i)
      k.changed = true
      if h[OFFERED] == 0 then abandon(k, h, h[ENDS]) end
    else
      i = i + 1
    end
  end
  if st[LOST] and st[LOST][ONCE] == 0 and st[LOST][ENDS] + MEMORY <= now then clean(k) end
  hand_over(k)
end

-- agreed reports whether there is somebody to agree with about the permits.
local function agreed(k)
  if k.inuse ~= nil then return k.inuse end
  return #k.st[HOLDERS] > 0 or k.st[QUEUE] > 0 and call('EXISTS', k.q) == 1
end

local function write_record(k, token, print, data, retention)
  if print == '' then print = NOBODY end
  finish('SET', k.r, struct.pack('>BI8I8', VERSION, now, now + retention) .. token .. print .. data,
    'PX', ceil(retention / 1000))
  answer(k)
end

-- each lets f answer each of so many elements that has no answer yet. One that fails is
-- answered {0, why}.
local function each(answers, count, f)
  for i = 1, count do
    if not answers[i] then
      local ok, answer = pcall(f, i)
      if not ok then answer = { 0, type(answer) == 'table' and answer.err or answer } end
      answers[i] = answer
    end
  end
  if given > mark then redis.pcall('SET', KEYS[1], string.format('%.0f', given)) end
  return answers
end
