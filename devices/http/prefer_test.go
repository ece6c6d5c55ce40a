package http

import (
	"net/http"
	"testing"
	"time"
)

func TestTheWaitIsReadFromPrefer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		headers []string
		want    time.Duration
	}{
		{nil, 0},
		{[]string{""}, 0},
		{[]string{"wait=25"}, 25 * time.Second},
		{[]string{"Wait=25"}, 25 * time.Second},
		{[]string{"  wait = 25 "}, 25 * time.Second},
		{[]string{`wait="25"`}, 25 * time.Second},
		{[]string{"wait=025"}, 25 * time.Second},
		{[]string{"respond-async, wait=10"}, 10 * time.Second},
		{[]string{"respond-async", "wait=10"}, 10 * time.Second},
		{[]string{"respond-async,,wait=10;foo=bar, return=minimal"}, 10 * time.Second},
		{[]string{`foo="a, wait=1; b", wait=2`}, 2 * time.Second},
		{[]string{`foo="\", wait=1", wait=2`}, 2 * time.Second},
		{[]string{`foo; wait=1, wait=2`}, 2 * time.Second},
		{[]string{"wait=5, wait=7"}, 5 * time.Second}, // the first one counts
		{[]string{"wait=x, wait=7"}, 0},
		{[]string{"wait=0"}, 0},
		{[]string{"wait"}, 0},
		{[]string{"wait="}, 0},
		{[]string{"wait=-5"}, 0},
		{[]string{"wait=+5"}, 0},
		{[]string{"wait=2.5"}, 0},
		{[]string{"wait=25s"}, 0},
		{[]string{"wait=0x10"}, 0},
		{[]string{`wait="25`}, 0},
		{[]string{"wait 25"}, 0},
		{[]string{"await=25"}, 0},
		{[]string{"wait=99999999999999999999999"}, maxParsedSeconds * time.Second},
		{[]string{"wait=9000000000000000000"}, maxParsedSeconds * time.Second},
	} {
		if got := PreferredWait(http.Header{"Prefer": test.headers}); got != test.want {
			t.Errorf("%q: %s, want %s", test.headers, got, test.want)
		}
	}
}
