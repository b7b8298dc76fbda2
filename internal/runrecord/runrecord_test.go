package runrecord

import (
	"testing"
	"time"
)

// TestRecord: a record is read as it was written, and that of another program is not a run.
func TestRecord(t *testing.T) {
	want := Run{Version: version, Command: "report.sh", Host: "worker-1", Began: time.Unix(1, 0).UTC(), Ended: time.Unix(2, 0).UTC(), TookMS: 1000, Exit: 3}
	data, err := want.Record()
	if got, ok := Read(data); err != nil || !ok || got != want {
		t.Errorf("%s is read as %+v, %v", data, got, ok)
	}
	for _, other := range []string{"", "17", `{"host":"worker-1"}`, `{"dibs_run":2}`} {
		if got, ok := Read([]byte(other)); ok || got != (Run{}) {
			t.Errorf("%q is read as %+v", other, got)
		}
	}
}
