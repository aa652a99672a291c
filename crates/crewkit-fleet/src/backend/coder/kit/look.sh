echo crewkit-begin
look
echo crewkit-end
