package jobs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/jobs"
)

func TestKeyOf(t *testing.T) {
	n := int64(42)
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	type two struct {
		Tenant string `dibs:"key,tenant"`
		Text   string
		Room   uint8 `dibs:"key"`
	}
	for _, c := range []struct {
		args any
		want string
	}{
		{struct {
			Conversation int64 `dibs:"key,conversation"`
		}{42}, "conversation 42"},
		{&struct {
			Conversation *int64 `dibs:"key,conversation"`
		}{&n}, "conversation 42"},
		{struct {
			Conversation *int64 `dibs:"key,conversation"`
		}{}, ""},
		{two{Tenant: "a b/c", Room: 7}, "tenant a%20b%2Fc Room 7"},
		{two{Tenant: "a b%2Fc", Room: 7}, "tenant a%20b%252Fc Room 7"},
		{struct {
			On bool      `dibs:"key"`
			At time.Time `dibs:"key,at"`
		}{true, at}, "On true at 2026-03-01T00:00:00Z"},
		{struct{ Text string }{"x"}, ""},
		{struct{}{}, ""},
	} {
		if got, err := jobs.KeyOf(c.args); err != nil || got != c.want {
			t.Errorf("%+v has the key %q, %v; want %q", c.args, got, err, c.want)
		}
	}
	for want, args := range map[string]any{
		"use a struct": 7,
		"no text": struct {
			F float64 `dibs:"key"`
		}{},
		"is unknown": struct {
			F string `dibs:"kye"`
		}{},
		"export it": struct {
			f string `dibs:"key"`
		}{"x"},
		"has no tags": (*two)(nil),
	} {
		if key, err := jobs.KeyOf(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T has the key %q, %v; want an error with %q", args, key, err, want)
		}
	}
}
