package web

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// TestOnlyPagesAreTriedAgain checks which failures the browser loads again by itself: a page that could not be read because a server did not
// answer. A submitted form and a page with input of the visitor are not loaded again, because that would lose the input.
func TestOnlyPagesAreTriedAgain(t *testing.T) {
	t.Parallel()
	get, post := httptest.NewRequest(http.MethodGet, "/pools/p/edit", nil), httptest.NewRequest(http.MethodPost, "/pools/p/edit", nil)
	for name, c := range map[string]struct {
		request *http.Request
		status  int
		want    bool
	}{
		"a page":            {get, http.StatusServiceUnavailable, true},
		"a form":            {post, http.StatusServiceUnavailable, false},
		"a page with input": {withFormInput(get, formInput{values: url.Values{"capacity": {"9"}}}), http.StatusServiceUnavailable, false},
		"a refusal":         {get, http.StatusForbidden, false},
	} {
		if got := isReloadedByBrowser(c.request, c.status); got != c.want {
			t.Errorf("%s with status %d is tried again: %t", name, c.status, got)
		}
	}
}
