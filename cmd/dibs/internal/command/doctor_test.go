package command_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/servertest"
)

// TestDoctor: it says what it finds, with the cure and the exit code, what it
// looked at, and changes nothing.
func TestDoctor(t *testing.T) {
	t.Run("dangerous", func(t *testing.T) {
		b := newPostgresBench(t) // on a server that does not sync
		b.inspector(t)
		b.says(t, 1, "dangerous  durability: fsync is off", "", "doctor")
		b.says(t, 1, "Cure: Set fsync = on.\n", "", "doctor")
		b.says(t, 1, "looked at  postgres://postgres@"+sharedPostgres().Addr()+"/", "", "doctor")
	})
	t.Run("well", func(t *testing.T) {
		b := newBench(t)
		b.store = servertest.Postgres(t, &servertest.PostgresOptions{Password: secret}).URL()
		b.says(t, 0, "has its tables now", "", "migrate")
		b.says(t, 0, "nothing found\nlooked at  postgres://", "", "doctor")
		b.says(t, 0, "PostgreSQL ", "", "doctor")
	})
	t.Run("redis", func(t *testing.T) {
		b := newRedisBench(t)
		b.says(t, 1, "dangerous  persistence: ", "", "doctor")
		b.says(t, 1, ", Redis ", "", "doctor")
	})
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 69, "", "there is no file", "doctor")
		if b.exists("dibs.db") {
			t.Error("it made the file")
		}
		b.inspector(t)
		_, stdout, _ := b.run(t, "doctor") // what the filesystem is here, who knows
		if !strings.Contains(stdout, "looked at  "+b.store+", SQLite 3.") {
			t.Error(stdout)
		}
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.says(t, 0, "advice     memory: The store is part of one process", "", "doctor")
	})
}

// TestDoctorJSON: one object a line, the findings and then what was looked at.
func TestDoctorJSON(t *testing.T) {
	b := newPostgresBench(t) // on a server that does not sync
	b.inspector(t)
	code, stdout, stderr := b.run(t, "doctor", "--json")
	if code != 1 || stderr != "" {
		t.Fatalf("%d, %s", code, stderr)
	}
	type object struct {
		Name, Severity, What, Cure, Store, Version string
		RoundTripUS                                int64 `json:"round_trip_us"`
		Findings                                   *int
	}
	var all []object
	for text := range strings.Lines(stdout) {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		var o object
		if err := d.Decode(&o); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, o)
	}
	last := len(all) - 1
	if o := all[last]; o.Findings == nil || *o.Findings != last || o.RoundTripUS <= 0 || !strings.HasPrefix(o.Version, "PostgreSQL ") || o.Store == "" {
		t.Errorf("looked at: %+v", o)
	}
	if !slices.ContainsFunc(all[:last], func(o object) bool {
		return o.Name == "durability" && o.Severity == "dangerous" && o.Cure == "Set fsync = on." && o.What != ""
	}) {
		t.Errorf("the findings are %+v", all[:last])
	}
}
