package memoryredis

import (
	"bufio"
	"bytes"
	"strconv"
	"sync"

	"github.com/alicebob/miniredis/v2/server"
)

// minIndexed is the minimum number of members of a sorted set that gets an index. miniredis sorts fewer members fast enough.
const minIndexed = 32

// commandHook is called before miniredis runs a command of a client or of a script. It runs the commands of clients one at a time, and
// answers the range commands of scripts from the index.
type commandHook struct {
	server *server.Server

	mu      sync.Mutex
	clients map[*server.Peer]*client

	turn sync.Mutex             // held while a command of a client runs, and guards the fields below
	sets map[string]*orderedSet // by key: the index of the sorted sets that scripts have read
	run  int                    // number of commands of clients so far
	off  bool                   // a client has used another database: nothing is indexed any more
}

// client is a connection. Only its own goroutine uses it.
type client struct {
	isRunning bool // its command runs now, so that the hook must let the command pass
}

func newCommandHook(redisServer *server.Server) *commandHook {
	return &commandHook{server: redisServer, clients: make(map[*server.Peer]*client), sets: make(map[string]*orderedSet)}
}

// beforeCommand is called before each command. answered is false if miniredis must run the command.
func (h *commandHook) beforeCommand(peer *server.Peer, command string, args ...string) (answered bool) {
	from := h.findClient(peer)
	switch {
	case from == nil:
		return h.answerFromIndex(peer, command, args)
	case from.isRunning:
		return false
	}
	h.turn.Lock()
	defer h.turn.Unlock()
	from.isRunning = true
	h.run++
	h.server.Dispatch(peer, append([]string{command}, args...))
	from.isRunning = false
	h.trackClientCommand(command, args)
	return true
}

// findClient returns the client of a connection. It returns nil for the peer that runs the commands of a script. Only for such a peer,
// miniredis sets the field Ctx before the first command.
func (h *commandHook) findClient(peer *server.Peer) *client {
	h.mu.Lock()
	defer h.mu.Unlock()
	if peer.Ctx == nil && h.clients[peer] == nil {
		h.clients[peer] = &client{}
		peer.OnDisconnect(func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.clients, peer)
		})
	}
	return h.clients[peer]
}

// trackClientCommand deletes the indexes that a command of a client may have changed. answerFromIndex tracks the commands of scripts.
func (h *commandHook) trackClientCommand(command string, args []string) {
	switch command {
	case "EVAL", "EVALSHA":
	case "EXEC", "FLUSHALL", "FLUSHDB":
		clear(h.sets)
	default:
		h.trackChange(command, args)
	}
}

// trackChange deletes the index of each sorted set that a command names, unless the command only reads.
func (h *commandHook) trackChange(command string, args []string) {
	if command == "SWAPDB" || command == "SELECT" && (len(args) == 0 || args[0] != "0") {
		h.off = true
		clear(h.sets)
	}
	if h.server.IsReadOnlyCommand(command) {
		return
	}
	for _, arg := range args {
		delete(h.sets, arg)
	}
}

// answerFromIndex answers a range command of a script from the index. For any other command, it updates or deletes the indexes that the command
// changes, and returns false.
func (h *commandHook) answerFromIndex(peer *server.Peer, command string, args []string) (answered bool) {
	if h.off {
		return false
	}
	switch command {
	case "HGET", "HSET", "HDEL", "HMGET", "HLEN", "TIME": // most commands of scripts are one of these, and they change no sorted set
		return false
	case "ZADD":
		h.trackZAdd(args)
		return false
	case "ZREM": // without this case, loadIndex would find another number of members and read the whole set again
		if len(args) > 1 && h.sets[args[0]] != nil {
			h.sets[args[0]].remove(args[1:])
		}
		return false
	}
	query, isQuery := queries[command]
	if !isQuery {
		h.trackChange(command, args)
		return false
	}
	set := h.loadIndex(peer, args)
	return set != nil && query(set, peer, args[1:])
}

// trackZAdd adds the members of a ZADD to the index. If the ZADD has options, it deletes the index of the sorted set.
func (h *commandHook) trackZAdd(args []string) {
	if len(args) == 0 || h.sets[args[0]] == nil {
		return
	}
	set, pairs := h.sets[args[0]], args[1:]
	for ; len(pairs) >= 2; pairs = pairs[2:] {
		score, err := strconv.ParseFloat(pairs[0], 64)
		if err != nil {
			delete(h.sets, args[0])
			return
		}
		set.add(score, pairs[1])
	}
}

// loadIndex returns the index of the sorted set args[0], or nil if the set is small. If the set has another number of members than its index,
// it has expired, and loadIndex reads the set again. No set expires while a script runs, so loadIndex checks a set once for each script.
func (h *commandHook) loadIndex(c *server.Peer, args []string) *orderedSet {
	if len(args) == 0 {
		return nil
	}
	key := args[0]
	set := h.sets[key]
	if set != nil && set.checkedIn == h.run {
		return set
	}
	size, isNumber := h.runCommand(c, "ZCARD", key).(int)
	if !isNumber || size < minIndexed {
		delete(h.sets, key)
		return nil
	}
	if set == nil || set.size() != size {
		members, _ := h.runCommand(c, "ZRANGE", key, "0", "-1", "WITHSCORES").([]any)
		if set = newOrderedSet(members); set.size() != size {
			return nil
		}
		h.sets[key] = set
	}
	set.checkedIn = h.run
	return set
}

// runCommand runs a command as part of the script that runs for peer. It returns the reply, or nil after an error.
func (h *commandHook) runCommand(peer *server.Peer, command ...string) (reply any) {
	var written bytes.Buffer
	to := bufio.NewWriter(&written)
	own := server.NewPeer(to)
	own.Ctx = peer.Ctx
	h.server.Dispatch(own, command)
	own.Flush()
	parsed, err := server.ParseReply(bufio.NewReader(&written))
	if err != nil {
		return nil
	}
	return parsed
}
