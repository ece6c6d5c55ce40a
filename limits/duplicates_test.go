package limits

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// TestRepeatsAreWhatDuplicatePoliciesCount checks that DuplicateFinder and a duplicate policy agree on which two
// starts count as equal.
func TestRepeatsAreWhatDuplicatePoliciesCount(t *testing.T) {
	t.Parallel()
	rules, err := Compile("pool p", []policy.Policy{{Name: "same", Algorithm: policy.Duplicate, PerMS: 1000, Max: 1}})
	must.Succeed(t, err)
	var all []Facts
	for _, device := range []string{"d-1", "d-2", ""} {
		for _, kind := range []string{"", "k", "d-1"} {
			for _, payload := range []string{"", "null", `{}`, `{"a":1,"b":[1,{"x":"y"}]}`, ` {"b":[1,{"x":"y"}],"a":1}`, `{"b":[1,{"x":"y"}],"a":1.0}`, `"d-1"`, `1`} {
				all = append(all, Facts{Device: device, Kind: kind, Payload: json.RawMessage(payload)})
			}
		}
	}
	all = append(all, all...)
	repeats, policy := NewDuplicateFinder(), map[string]int32{}
	for i, f := range all {
		key := rules[0].Subject(f).digest
		want, wantIs := policy[key]
		if !wantIs {
			policy[key] = int32(i)
		}
		if got, is := repeats.FindEarlier(f, int32(i)); got != want || is != wantIs {
			t.Errorf("%d %+v: %d %t, the policy says %d %t", i, f, got, is, want, wantIs)
		}
	}
}

func TestRepeatsTakeFewBytes(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	const many = 50_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	repeats := NewDuplicateFinder()
	for i := range int32(many) {
		if _, is := repeats.FindEarlier(Facts{Device: fmt.Sprintf("device-%d", i), Payload: json.RawMessage(`{"a":1}`)}, i); is {
			t.Fatalf("%d was never seen", i)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / many
	t.Logf("%.0f bytes each", each)
	if each > 80 {
		t.Errorf("%.0f bytes each", each)
	}
	runtime.KeepAlive(repeats)
}
