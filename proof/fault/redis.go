package fault

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// redisWitness is the witness of a Redis.
type redisWitness struct{ client rueidis.Client }

func meetRedis(ctx context.Context, url string) (witness, error) {
	bare, _, _ := strings.Cut(url, "?") // what is behind it is the store's
	option, err := rueidis.ParseURL(bare)
	if err != nil {
		return nil, err
	}
	option.DisableCache, option.DisableRetry, option.ForceSingleClient = true, true, true
	option.Dialer.Timeout = look
	if end, ok := ctx.Deadline(); ok {
		option.Dialer.Timeout = max(time.Until(end), time.Millisecond)
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, err
	}
	return &redisWitness{client}, nil
}

// meetRedis is meet for what is done to a Redis alone.
func (t *Target) meetRedis(ctx context.Context) (*redisWitness, error) {
	w, err := t.meet(ctx)
	if err != nil {
		return nil, err
	}
	return w.(*redisWitness), nil
}

func (w *redisWitness) start(ctx context.Context) (start, error) {
	id, err := w.info(ctx, "run_id")
	return start{id: id}, err
}

func (w *redisWitness) now(ctx context.Context) (time.Time, error) {
	parts, err := w.do(ctx, "TIME").AsStrSlice()
	if err != nil || len(parts) != 2 {
		return time.Time{}, fmt.Errorf("TIME: %q, %w", parts, err)
	}
	s, err := strconv.ParseInt(parts[0], 10, 64)
	return time.Unix(s, 0), err
}

func (w *redisWitness) sever(ctx context.Context, from []*net.TCPAddr) (gone int, err error) {
	for _, addr := range from {
		n, err := w.do(ctx, "CLIENT", "KILL", "ADDR", addr.String()).AsInt64()
		if err != nil {
			return gone, err
		}
		gone += int(n)
	}
	return gone, nil
}

// unscripted returns how often the server was asked for a script that it did not know.
func (w *redisWitness) unscripted(ctx context.Context) (int, error) {
	value, err := w.info(ctx, "errorstat_NOSCRIPT") // "count=3"
	if err != nil || value == "" {
		return 0, err
	}
	return strconv.Atoi(strings.TrimPrefix(value, "count="))
}

// info returns a field of INFO, or "".
func (w *redisWitness) info(ctx context.Context, field string) (string, error) {
	all, err := w.do(ctx, "INFO", "everything").ToString()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(all) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", nil
}

func (w *redisWitness) do(ctx context.Context, command ...string) rueidis.RedisResult {
	return w.client.Do(ctx, w.client.B().Arbitrary(command...).Build())
}

func (w *redisWitness) close() { w.client.Close() }
