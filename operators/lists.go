package operators

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

// maxPage is the largest page size that the server accepts. A page can be shorter although more entries follow.
const maxPage = 1000

// List yields the entries of the list at listPath, page by page. It yields at most limit entries. If limit is 0, there is no limit. When
// the iteration has ended, *hasMore reports whether the list has entries beyond the limit. List reads the entries from the member of the
// response that has the name of the last segment of listPath, such as pools for /v1/pools.
func (c *Client) List(ctx context.Context, listPath string, query url.Values, limit int) (entries iter.Seq2[json.RawMessage, error], hasMore *bool) {
	hasMore = new(bool)
	return func(yield func(json.RawMessage, error) bool) {
		query, left := maps.Clone(query), limit
		if query == nil {
			query = url.Values{}
		}
		for {
			query.Set("page_size", strconv.Itoa(nextPageSize(left, limit)))
			page, next, err := c.fetchPage(ctx, listPath, query)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, entry := range page {
				if limit > 0 && left == 0 {
					*hasMore = true
					return
				}
				if !yield(entry, nil) {
					return
				}
				left--
			}
			if next == "" {
				return
			}
			query.Set("page_token", next)
		}
	}, hasMore
}

// nextPageSize returns the size of the next page, at most maxPage. entriesLeft is the number of entries that List may yield before it reaches
// its limit. One more entry tells List whether the list continues beyond the limit. If limit is 0, there is no limit.
func nextPageSize(entriesLeft, limit int) int {
	if limit == 0 {
		return maxPage
	}
	return min(entriesLeft+1, maxPage)
}

// fetchPage reads one page of a list. nextToken is the token of the next page. It is empty after the last page.
func (c *Client) fetchPage(ctx context.Context, listPath string, query url.Values) (entries []json.RawMessage, nextToken string, err error) {
	text, err := c.Get(ctx, listPath, query)
	if err != nil {
		return nil, "", err
	}
	var page map[string]json.RawMessage
	if err := json.Unmarshal(text, &page); err != nil {
		return nil, "", fmt.Errorf("GET %s: %w", listPath, err)
	}
	if err := json.Unmarshal(page[path.Base(listPath)], &entries); err != nil {
		return nil, "", fmt.Errorf("GET %s: no %s in the response: %w", listPath, path.Base(listPath), err)
	}
	if token := page["next_page_token"]; token != nil {
		err = json.Unmarshal(token, &nextToken)
	}
	return entries, nextToken, err
}

const (
	maxEventLine        = 1 << 20          // maximum length of a line, in bytes
	firstReconnectPause = time.Second      // first pause after a stream has ended
	maxSilence          = 45 * time.Second // maximum time without any data; the server sends a heartbeat every 15 s
)

// LivePosition is the position of a reader of a live list (an event stream of the API).
type LivePosition struct {
	LastID string // id of the last entry that was read; empty means that the reader begins with new entries
	// OnConnected is called once for each connection, after the server has sent the id at which the stream begins. It may be
	// nil.
	OnConnected func()
}

var errSilent = errors.New("no heartbeat for " + maxSilence.String())

// Follow reads a live list and calls handle with each entry after position. It ends when ctx ends, when handle returns an error, or when
// the server refuses the request. After a lost connection it connects again and resumes after the last entry that was read. If it cannot
// reach a server and has not received any id yet, it returns the error.
func (c *Client) Follow(ctx context.Context, path string, query url.Values, position LivePosition, handle func(json.RawMessage) error) error {
	pause := firstReconnectPause
	for {
		before := position.LastID
		err := c.followOnce(ctx, path, query, &position, handle)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if failed, ok := errors.AsType[*handleError](err); ok {
			return failed.error
		}
		if !IsTransient(err) {
			return err
		}
		if lost, ok := errors.AsType[*LostError](err); ok && !lost.Reached && position.LastID == "" {
			return err // no id was received yet, and no server was found
		}
		if position.LastID != before {
			pause = firstReconnectPause
		}
		if c.config.OnRetry != nil {
			c.config.OnRetry(err, pause)
		}
		if err := Sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// handleError wraps an error of the function handle. Follow returns this error, even if it is a LostError of another request.
type handleError struct{ error }

// followOnce reads a live list over one connection and calls handle with each entry. It updates position. It always returns an error.
func (c *Client) followOnce(ctx context.Context, path string, query url.Values, position *LivePosition, handle func(json.RawMessage) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(maxSilence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	response, err := c.sendOnce(ctx, Request{Method: http.MethodGet, Path: path, Query: query, Accept: typeEvents, LastEventID: position.LastID})
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			return c.newLostError(errSilent)
		}
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return readProblem(response)
	}
	err = c.readEvents(response.Body, func() { watchdog.Reset(maxSilence) }, position, handle)
	if errors.Is(context.Cause(ctx), errSilent) {
		return c.newLostError(errSilent)
	}
	return err
}

// readEvents parses the fields id and data of an event stream. The server writes each field in one line. readEvents calls onLine for each
// line, calls handleEntry with the data of each event, and updates position. An event is complete only after the empty line that follows
// it. The server sends an incomplete event again on the next connection.
func (c *Client) readEvents(body io.Reader, onLine func(), position *LivePosition, handleEntry func(json.RawMessage) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEventLine)
	begun := false
	for id, data := "", ""; lines.Scan(); {
		onLine()
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			id = value
		case "data":
			data = value
		case "":
			if id != "" && !begun && position.OnConnected != nil {
				position.OnConnected()
			}
			begun = begun || id != ""
			if data != "" {
				if err := handleEntry(json.RawMessage(data)); err != nil {
					return &handleError{err}
				}
			}
			position.LastID, data = cmp.Or(id, position.LastID), ""
		}
	}
	return c.newLostError(fmt.Errorf("the stream ended: %w", cmp.Or(lines.Err(), io.EOF)))
}

// newLostError returns the error for a live list whose connection was lost because of cause.
func (c *Client) newLostError(cause error) error {
	return &LostError{URL: c.URL(), Err: cause, Reached: true, ReadOnly: true}
}
