-- probe calls everything that the other scripts and the store call, to find out whether the user
-- may. It leaves nothing behind. Unlike the other scripts it begins with no state.lua.
--
-- KEYS  the fence, the listed names, the state of a key that no caller asks for
-- ARGV  sharded; a channel that no process has
--
-- The answer is the first call that the user may not make, and the server's words; or nothing.

local sharded, channel = ARGV[1] == '1', ARGV[2]
local base = string.sub(KEYS[3], 1, -2)
local s, q, w, r, p = KEYS[3], base .. 'q', base .. 'w', base .. 'r', base .. 'p'

local refused = {}
local function try(...)
  local done = redis.pcall(...)
  local why = type(done) == 'table' and done.err or ''
  if not refused[1] and (string.sub(why, 1, 6) == 'NOPERM' or string.find(why, 'ACL failure', 1, true) or string.find(why, 'user executing the script', 1, true)) then
    refused = { (string.gsub(string.lower(select(1, ...)), '^pubsub$', 'pubsub|' .. string.lower(select(2, ...) or ''))), why }
  end
end

try('TIME')
for _, name in ipairs({ s, r }) do
  try('SET', name, '', 'PX', 1000)
  try('GET', name)
  try('EXISTS', name)
  try('GETRANGE', name, 0, 1)
  try('STRLEN', name)
end
for _, name in ipairs({ q, KEYS[2] }) do
  try('ZADD', name, 1, 'x')
  try('ZRANGE', name, 0, 0)
  try('ZCOUNT', name, 0, 0)
  try('ZCARD', name)
  try('ZSCAN', name, 0)
  try('ZREM', name, 'x')
end
for _, name in ipairs({ w, p }) do
  try('HSET', name, 'x', '')
  try('HGET', name, 'x')
  try('HMGET', name, 'x')
  try('HKEYS', name)
  try('PEXPIRE', name, 1000)
  try('HDEL', name, 'x')
end
try('PERSIST', KEYS[1])
try('SCAN', 0, 'COUNT', 1)
if sharded then
  try('PTTL', s)
  try('PEXPIRETIME', s)
end
try('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)
try(sharded and 'SPUBLISH' or 'PUBLISH', channel, '')
try('DEL', s, r, q, w, p)
return refused
