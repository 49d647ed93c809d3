"""Child processes: started, talked to, watched, and what they failed with.

spawn       Child: the command line, what it inherits, its end; and what the child does first
channel     messages in both directions over one socket
heartbeat   a page of shared memory on which a child shows what it is doing
pending     connections whose request has not arrived: bounded in number and time
trace       the traceback of a child that failed, or hangs
"""
