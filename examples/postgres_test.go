//go:build nightly

package examples

import "testing"

// The leases of these, a few seconds long, have to be alive while a job runs.
func init() { wanted = append(wanted, "conversation", "redelivery") }

// TestOnPostgres: as TestExamples, on PostgreSQL.
func TestOnPostgres(t *testing.T) {
	for _, name := range wanted {
		t.Run(name+" on PostgreSQL", func(t *testing.T) {
			t.Parallel()
			checkExample(t, name, "PostgreSQL", postgres().URL())
		})
	}
	t.Cleanup(func() { checkSchemas(t) })
}
