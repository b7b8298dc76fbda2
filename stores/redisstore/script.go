package redisstore

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

//go:embed lua
var sources embed.FS

// The scripts, one for each verb.
var (
	claimScript        = newScript("claim")
	renewScript        = newScript("renew")
	settleScript       = newScript("settle")
	forceReleaseScript = newScript("forcerelease")
	forgetScript       = newScript("forget")
	resolveScript      = newScript("resolve")
	probeScript        = scriptOf(source("probe"))
)

// script is a Lua script: its text, and the digest by which the server finds it.
type script struct {
	text, sha string
}

func newScript(verb string) *script {
	text := source("state") + source(verb)
	for _, part := range []string{"key", "queue"} { // after a script's fast path
		text = strings.Replace(text, "--@"+part+".lua", source(part), 1)
	}
	return scriptOf(text)
}

func scriptOf(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

func source(name string) string {
	b, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // it is compiled in
	}
	return string(b)
}

// leastBulk is the smallest limit for an argument that a server can have
// (proto-max-bulk-len).
const leastBulk = 1 << 20

func (b *batch) command(client rueidis.CoreClient, how, script string) rueidis.Completed {
	command := client.B().Arbitrary(how, script, strconv.Itoa(len(b.keys))).Keys(b.keys...).Args(b.args...).Build()
	for _, arg := range b.args {
		if len(arg) > leastBulk {
			// The server may refuse it before it is written completely, so the client
			// must not reuse its memory.
			return command.Pin()
		}
	}
	return command
}

// pipeline runs the batches' scripts in one pipeline. A server that does not know a
// script has done nothing, and gets its text.
func pipeline(ctx context.Context, client rueidis.CoreClient, all []*batch) []rueidis.RedisResult {
	commands := make(rueidis.Commands, len(all))
	for i, b := range all {
		commands[i] = b.command(client, "EVALSHA", b.script.sha)
	}
	results := client.DoMulti(ctx, commands...)
	for i, b := range all {
		if err, ok := rueidis.IsRedisErr(results[i].Error()); ok && err.IsNoScript() {
			results[i] = client.Do(ctx, b.command(client, "EVAL", b.script.text))
		}
	}
	return results
}
