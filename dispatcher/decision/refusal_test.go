package decision

import (
	"os"
	"regexp"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
)

// Every reason that refuses has a row, which says when to ask again.
func TestEveryReasonHasARow(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../devices/reply.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`(?m)^\tReason\w+ +Reason = "(\w+)"`).FindAllStringSubmatch(string(text), -1)
	if len(reasons) < 10 {
		t.Fatalf("found only %q", reasons)
	}
	for _, reason := range reasons {
		if row := RefusalOf(devices.Reason(reason[1])); reason[1] != "granted" && (string(row.Reason) != reason[1] || row.again == nil) {
			t.Errorf("%s: its row is %+v", reason[1], row)
		}
	}
}
