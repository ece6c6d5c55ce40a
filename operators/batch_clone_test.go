package operators_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/operators"
)

// Every setting of a batch is in its clone, and the payload keeps its bytes. Only the tasks and the treatment of duplicates
// are no settings of a batch.
func TestCloneHasEverySetting(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 4, 5, 6, 0, time.UTC)
	batch := operators.Batch{
		ID: 7, Name: "n", Pool: "p", Kind: "k", State: "running", Priority: 1, Weight: 2, Lane: "urgent", NotBefore: &operators.Time{Time: at}, NotAfter: &operators.Time{Time: at.Add(time.Hour)},
		MaxWaitMS: 3, Windows: []operators.Window{{Cron: "0 1 * * *", Duration: "4h"}}, Limits: []operators.Policy{{Name: "l"}}, MaxAttempts: 4, RetryOn: []string{"failed"}, RetryBackoffMS: 5,
		OnLost: "fail", LeaseMS: 6, MaxRunMS: 8, Abort: &operators.Abort{Failure: 0.5, Min: 9}, Payload: json.RawMessage(`{"a": "<b>"}`), Total: 10,
	}
	end := at.Add(time.Hour)
	want := operators.NewBatch{
		Name: "n", Pool: "p", Kind: "k", Priority: 1, Weight: 2, Lane: "urgent", NotAfter: &end,
		MaxWaitMS: 3, Windows: batch.Windows, Limits: batch.Limits, FinishInside: new(false), MaxAttempts: 4, RetryOn: batch.RetryOn, RetryBackoffMS: new(int64(5)),
		OnLost: "fail", LeaseMS: 6, MaxRunMS: 8, Abort: batch.Abort, Payload: batch.Payload,
	}
	if diff := cmp.Diff(want, batch.CloneSettings(at)); diff != "" {
		t.Error(diff)
	}
}
