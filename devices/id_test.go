package devices_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
)

func TestParseID(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "0", "cpe-0001", "a.b_c:d-E", "00:1A:2b", "a..b", strings.Repeat("x", 128)} {
		if id, err := devices.ParseID(good); err != nil || string(id) != good {
			t.Errorf("ParseID(%q) = %q, %v", good, id, err)
		}
	}
	for _, bad := range badIDs() {
		if id, err := devices.ParseID(bad); err == nil || id != "" {
			t.Errorf("ParseID(%q) = %q, %v", bad, id, err)
		} else if bad != "" && len(bad) > 3 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error repeats the name: %v", err)
		}
	}
}

func TestParsePool(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"ar:330100", strings.Repeat("x", 64)} {
		if err := devices.CheckPoolName(good); err != nil {
			t.Errorf("ParsePool(%q) = %v", good, err)
		}
	}
	for _, bad := range append(badIDs(), strings.Repeat("x", 65)) {
		if devices.CheckPoolName(bad) == nil {
			t.Errorf("ParsePool(%q) accepted", bad)
		}
	}
}

func badIDs() []string {
	return []string{
		"", ".", "..", "../a", "-a", "_a", ":a", "a/b", "a+b", "+", "#", "a#", "$SYS", "a b", "a\n", "a\x00", "é", "a\xff", "a%3Ab",
		strings.Repeat("x", 129), strings.Repeat("x", 200),
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	if got := devices.ReportTopic("a:1"); got != "fleet/v1/a:1/report" {
		t.Error(got)
	}
	if got := devices.ReplyTopic("a:1"); got != "fleet/v1/a:1/reply" {
		t.Error(got)
	}
	if got := devices.SharedReportFilter("dispatcher"); got != "$share/dispatcher/fleet/v1/+/report" {
		t.Error(got)
	}
}

func TestParseReportTopic(t *testing.T) {
	t.Parallel()
	if id, err := devices.ParseReportTopic("fleet/v1/a:1/report"); err != nil || id != "a:1" {
		t.Errorf("%q, %v", id, err)
	}
	for _, bad := range badTopics() {
		if id, err := devices.ParseReportTopic(bad); err == nil {
			t.Errorf("ParseReportTopic(%q) = %q", bad, id)
		}
	}
}

func badTopics() []string {
	return []string{
		"", "/", "fleet/v1/report", "fleet/v1//report", "fleet/v1/a/reply", "fleet/v1/a/report/", "/fleet/v1/a/report", "fleet/v1/a/b/report",
		"fleet/v1/+/report", "fleet/v1/#", "fleet/v2/a/report", "fleet/v1/a/REPORT", "fleet/v1/../report", "fleet/v1/a\x00/report",
		"$share/dispatcher/fleet/v1/a/report", "fleet/v1/" + strings.Repeat("x", 200) + "/report",
	}
}
